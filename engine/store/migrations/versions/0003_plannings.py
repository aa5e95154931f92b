"""Count how often planning a run began without coming to an end."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Take no run of an earlier layout to have ended its service."""
    op.add_column("run", sa.Column("plannings", sa.Integer, nullable=False, server_default="0"))
