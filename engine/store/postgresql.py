"""The run table in PostgreSQL: whoever writes waits for a turn as with SQLite, and its errors are told apart."""

from __future__ import annotations

import json
import math
from typing import Any

import sqlalchemy as sa

TURN = 7315061  # the advisory lock of whoever writes
LOOK = 1.0  # seconds of waiting in the server between two looks at the time
CONNECT = 10  # seconds
READS: dict[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}  # one moment's state
LOCK_NOT_AVAILABLE, DISK_FULL = "55P03", "53100"
# The server is told to end, has crashed, starts, has waited too long for the rest; connections that broke.
ENDING = ("57P01", "57P02", "57P03", "25P03", "08")
# A host that vanishes without a word is noticed after some 20 seconds at either end, and does not keep its turn.
SILENCE = {"keepalives_idle": 10, "keepalives_interval": 3, "keepalives_count": 3}  # seconds, seconds, probes
SENT = 20_000  # milliseconds after which what was sent and not acknowledged ends a connection
ABORTED, COMMITTED, OPEN = "aborted", "committed", "in progress"  # what becomes of a transaction
IDLE = 60_000  # milliseconds in which somebody in a transaction has to go on


def is_postgresql(url: str) -> bool:
    """Return whether a database URL names PostgreSQL."""
    return url.startswith("postgresql")


def connect(url: str) -> sa.Engine:
    """Connect; connections that a restart of the server has cut are replaced before they are used."""
    told = {"connect_timeout": CONNECT, "application_name": "mergelens", "tcp_user_timeout": SENT, **SILENCE}
    engine = sa.create_engine(url, pool_pre_ping=True, json_serializer=json_text, connect_args=told)

    @sa.event.listens_for(engine, "connect")
    def adapt(connection: Any, _: Any) -> None:
        from psycopg.types.string import StrDumper

        class Texts(StrDumper):
            def dump(self, obj: str) -> Any:
                return super().dump(obj.replace("\0", "\ufffd"))  # no text of PostgreSQL holds the character 0

        connection.adapters.register_dumper(str, Texts)
        for name, value in SILENCE.items():
            connection.execute(f"SET tcp_{name} = {value}")
        connection.execute(f"SET tcp_user_timeout = {SENT}")
        connection.execute(f"SET idle_in_transaction_session_timeout = {IDLE}")
        connection.commit()

    return engine


def take_turn(connection: sa.Connection, seconds: float) -> None:
    """Wait for other writers before anything is read, so that what is read stays true until it is written.

    Args:
        connection: in a transaction.
        seconds: the most that is waited; the error of a longer wait is :func:`is_locked`.
    """
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {max(1, int(1000 * min(LOOK, seconds)))}")
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({TURN})")
    connection.exec_driver_sql("SET LOCAL lock_timeout = 0")


def number_of(connection: sa.Connection) -> int | None:
    """Return the number that the server knows this transaction by; None when it has written nothing."""
    return connection.exec_driver_sql("SELECT txid_current_if_assigned()").scalar()


def fate_of(connection: sa.Connection, number: int) -> str:
    """Return ``committed``, ``aborted`` or ``in progress`` for a transaction of a connection that is lost."""
    return connection.execute(sa.text("SELECT txid_status(:number)"), {"number": number}).scalar() or ABORTED


def is_locked(error: BaseException) -> bool:
    """Return whether somebody else held a lock for too long."""
    return getattr(error, "sqlstate", None) == LOCK_NOT_AVAILABLE


def is_away(error: BaseException) -> bool:
    """Return whether the server cannot be reached, is ending or is starting."""
    state = getattr(error, "sqlstate", None)
    unreached = type(error).__name__ == "OperationalError" and state is None
    return unreached or str(state).startswith(ENDING)


def is_full(error: BaseException) -> bool:
    """Return whether the server's disk is full."""
    return getattr(error, "sqlstate", None) == DISK_FULL


def json_text(value: Any) -> str:
    """Return JSON as PostgreSQL reads it: numbers that are not finite are null."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, (list, tuple)) else value
