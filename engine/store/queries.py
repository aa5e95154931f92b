"""Queries of the run table: rows by what is asked of them, and the row whose turn it is."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import sqlalchemy as sa

from .run import HELD
from .tables import run as run_table


def matching(
    *,
    kinds: Iterable[str] | None = None,
    states: Iterable[str] | None = None,
    parent: str | None = None,
    children: bool = True,
    tag: str | None = None,
    person: str | None = None,
    search: str = "",
    deleted: bool = False,
) -> sa.Select:
    """Select rows, newest first.

    Args:
        kinds: only these.
        states: only these.
        parent: only children of this run.
        children: False leaves out rows that belong to another one.
        tag: only with this tag.
        person: only those that belong to this person.
        search: only with this text in id, name, notes, tags or request.
        deleted: the deleted ones instead of the others.
    """
    where = [run_table.c.deleted.is_not(None) if deleted else run_table.c.deleted.is_(None)]
    where += [run_table.c.kind.in_(tuple(kinds))] if kinds is not None else []
    where += [run_table.c.state.in_(tuple(states))] if states is not None else []
    where += [run_table.c.parent == parent] if parent is not None else []
    where += [] if children else [run_table.c.parent.is_(None)]
    where += [run_table.c.person == person] if person is not None else []
    where += [_contains(run_table.c.tags, f'"{tag}"')] if tag is not None else []
    if search.strip():
        columns = (run_table.c.id, run_table.c.name, run_table.c.notes, run_table.c.tags, run_table.c.request)
        where += [sa.or_(*(_contains(column, word) for column in columns)) for word in search.split()]
    return sa.select(run_table).where(*where).order_by(run_table.c.created.desc(), run_table.c.id.desc())


WAITING = (run_table.c.state == "queued") & run_table.c.deleted.is_(None)
ANY_WAITS = sa.select(run_table.c.id).where(WAITING).limit(1)  # which an idle service asks several times a second


@cache
def next_in_turn(kinds: tuple[str, ...] | None = None) -> sa.Select:
    """Select the id of the oldest queued row of who has the fewest at work.

    Args:
        kinds: only these.
    """
    where = [WAITING] if kinds is None else [WAITING, run_table.c.kind.in_(kinds)]
    other = run_table.alias()
    same = sa.and_(other.c.person == run_table.c.person, other.c.state.in_(HELD))
    at_work = sa.select(sa.func.count()).select_from(other).where(same).scalar_subquery()
    return sa.select(run_table.c.id).where(*where).order_by(at_work, run_table.c.created, run_table.c.id).limit(1)


def _contains(column: Any, text: str) -> Any:
    return sa.cast(column, sa.Text).icontains(text, autoescape=True)
