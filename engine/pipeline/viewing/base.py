"""Views on a run: measurements of it, or of its models and weights, that are made when they are asked for.

A view is one file in ``views/``: its request, its plan, its steps and, last, its declaration, a :class:`View`. The
package finds it there; rows of the run table, the list of runs, experiments and the pages' waiting know it from its
declaration. Nothing here imports torch, and neither do the files of views when they are imported: pages read them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from ...errors import StoreError
from ...recipe import Recipe, Request
from .work import Sizes, Work

if TYPE_CHECKING:
    from .opening import Opens


class ViewRequest(Request):
    """Base of what a view is asked for; the recipe names the run."""

    recipe: Recipe


R = TypeVar("R", bound=ViewRequest)


@dataclass(frozen=True)
class View(Generic[R]):
    """A view on a run as it is declared."""

    name: str  # kind of its rows in the run table
    title: str  # of its rows, for people
    request: type[R]
    plan: Callable[
        ..., str
    ]  # (RunSteps, request) adds the view's steps to those of a run (its first argument); returns the last one's key
    document: str = ""  # name of the JSON file that the last step writes, where it is not the view's own
    reduced: Callable[[Recipe], Recipe] = lambda recipe: recipe  # the recipe without what the view does not depend on
    goes_on: bool = False  # whether `plan` takes, third, steps that failed by key, each with its reason
    work: Callable[[R, Sizes], Work] | None = None  # what it does, so that its time is foreseen; None: not known
    needs: Literal["zoo", "merge", "run"] = "run"  # what it starts from
    unaligned: bool = False  # looks at experts of other bases as they are, and merges nothing
    opens: Opens | None = None  # what its page asks for when it opens; None: nothing until somebody does

    def ask(self, recipe: Recipe, **settings: Any) -> R:
        """Make the request for a run; runs that differ only in what the view does not depend on share it."""
        return self.request(recipe=self.reduced(recipe), **settings)

    def read(self, folder: Path) -> dict[str, Any]:
        """Read the document that the view left.

        Raises:
            StoreError: it is not there or damaged.
        """
        return read_document(folder, self.document or self.name)


def read_document(folder: Path, name: str) -> dict[str, Any]:
    """Read a JSON file that a view left.

    Raises:
        StoreError: it is not there or damaged.
    """
    try:
        return json.loads((folder / f"{name}.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"What was computed of the run cannot be read ({error}). Compute it again.") from error
