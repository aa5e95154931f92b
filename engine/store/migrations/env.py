"""Alembic's entry point: changes are carried out in the transaction of whoever asks for them."""

from alembic import context

given = context.config.attributes
context.configure(connection=given["connection"], target_metadata=given["metadata"], render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
