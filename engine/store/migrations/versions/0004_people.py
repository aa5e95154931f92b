"""Runs belong to people, and deletions are put down."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add whom a run belongs to (those from before to nobody), and the audit log."""
    op.add_column("run", sa.Column("person", sa.Text, nullable=False, server_default=""))
    op.create_table(
        "audit",
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("person", sa.Text, nullable=False),
        sa.Column("action", sa.String(20), nullable=False),
        sa.Column("run", sa.String(20), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
    )
