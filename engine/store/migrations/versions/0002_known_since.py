"""Say from when on the table knows all runs, in place of the layout's number."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = None


def upgrade() -> None:
    """Take a table of layout 1 to know all runs, as it was there before every artefact of its store."""
    meta = sa.table("meta", sa.column("name", sa.String), sa.column("value", sa.String))
    op.execute(meta.delete().where(meta.c.name == "schema"))
    op.execute(meta.insert().values(name="known_since", value="0"))
