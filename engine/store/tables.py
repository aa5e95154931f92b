"""The tables of the run database. Times are seconds since the epoch."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Float, Index, Integer, MetaData, String, Table, Text

LAYOUT = "0004"  # the last change in migrations/

metadata = MetaData()

layout = Table("alembic_version", metadata, Column("version_num", String(32), primary_key=True))

meta = Table("meta", metadata, Column("name", String(40), primary_key=True), Column("value", String(200)))

run = Table(
    "run",
    metadata,
    Column("id", String(20), primary_key=True),  # sorts by time of submission
    Column("kind", String(20), nullable=False),
    Column("parent", String(20)),
    Column("name", Text, nullable=False, default=""),
    Column("request", JSON, nullable=False),
    Column("state", String(12), nullable=False),
    Column("fraction", Float, nullable=False, default=0.0),
    Column("message", Text, nullable=False, default=""),
    Column("step", Text, nullable=False, default=""),
    Column("step_number", Integer, nullable=False, default=0),
    Column("step_count", Integer, nullable=False, default=0),
    Column("metrics", JSON, nullable=False),
    Column("owner", String(120)),
    Column("heartbeat", Float),
    Column("attempts", Integer, nullable=False, default=0),
    Column("plannings", Integer, nullable=False, default=0, server_default="0"),
    Column("created", Float, nullable=False),
    Column("started", Float),
    Column("finished", Float),
    Column("deleted", Float),
    Column("error", Text, nullable=False, default=""),
    Column("error_kind", String(80), nullable=False, default=""),
    Column("result", Text, nullable=False, default=""),
    Column("step_keys", JSON, nullable=False),
    Column("tags", JSON, nullable=False),
    Column("notes", Text, nullable=False, default=""),
    Column("requested_by", Text, nullable=False, default=""),
    Column("person", Text, nullable=False, default="", server_default=""),
    Index("run_state", "state", "created"),
    Index("run_parent", "parent"),
)

log = Table(
    "log",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("run", String(20), nullable=False, index=True),
    Column("time", Float, nullable=False),
    Column("level", String(10), nullable=False),
    Column("line", Text, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("time", Float, nullable=False),
    Column("person", Text, nullable=False),
    Column("action", String(20), nullable=False),
    Column("run", String(20), nullable=False),
    Column("text", Text, nullable=False),
)

lease = Table(
    "lease",
    metadata,
    Column("name", String(20), primary_key=True),
    Column("owner", String(120), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("state", String(12), nullable=False),
    Column("version", String(80), nullable=False),
    Column("devices", JSON, nullable=False),
    Column("workers", Integer, nullable=False, default=0),
    Column("busy", Integer, nullable=False, default=0),
    Column("stop", Integer, nullable=False, default=0),
    Column("started", Float, nullable=False),
    Column("heartbeat", Float, nullable=False),
)

beat = Table("beat", metadata, Column("name", String(20), primary_key=True), Column("time", Float, nullable=False))

claim = Table(
    "claim",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("owner", String(120), nullable=False),
    Column("created", Float, nullable=False),
    Column("heartbeat", Float, nullable=False),
)

digest = Table(
    "digest",
    metadata,
    Column("path", Text, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("mtime_ns", String(24), nullable=False),
    Column("inode", String(24), nullable=False),
    Column("sha256", String(64), nullable=False),
)
