"""The command that makes a film: a recipe over the values of one parameter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..catalog import resolve
from ..catalog.words import choice_title
from ..errors import RecipeError
from ..rounding import rounded
from ..store.outputs import check_folder
from ..sweeps import parse_setting
from ..sweeps.frames import SEED
from ..sweeps.table import span
from ..zoo.nouns import kind_of_zoo
from .printing import progress_line, say
from .work import Quiet, Service, carrier


def film(
    recipe: Annotated[Path, typer.Argument(help="A recipe file (YAML or JSON).")],
    over: Annotated[
        str,
        typer.Option(help="place=start:stop:step or place=a,b,c; experts=1:8:1 lets one expert join after another."),
    ] = "merge.params.scaling=0:1:0.05",
    images: Annotated[str, typer.Option(help="Images a task that are looked at; all: as the recipe says.")] = "32",
    points: Annotated[int, typer.Option(help="Images a task that are drawn.")] = 32,
    projection: Annotated[str, typer.Option("--map", help="pca, tsne or umap.")] = "pca",
    order: Annotated[str, typer.Option(help="Names of experts as they join, separated by commas.")] = "",
    out: Annotated[Path | None, typer.Option(help="Copy the film into this folder.")] = None,
    service: Service = False,
    quiet: Quiet = False,
) -> None:
    """Make a film of a recipe: the same images at every value of one parameter, exact at each, in one map.

    Its frames are the steps of runs: what a run or a sweep has computed on the same images is not computed again.
    A value that a method refuses leaves a frame that says why.
    """
    from ..pipeline.local import copy_result, make_view
    from ..pipeline.views.film import FILM
    from ..recipe import read_recipe
    from ..store import Store

    if out is not None:
        check_folder(out)
    place, values = parse_setting(over)
    document = read_recipe(recipe)
    asked = FILM.request.parse(
        {
            "recipe": FILM.reduced(resolve(document)).model_dump(mode="json"),
            "place": place,
            "values": values,
            "images": _count(images),
            "points": points,
            "map": projection,
            "order": [name.strip() for name in order.split(",") if name.strip()],
        }
    )
    told = None if quiet else progress_line()
    folder = make_view(FILM, asked, Store(), progress=told, carry=carrier(service))
    if out is not None:
        copy_result(folder, out)
    say(printed(FILM.read(folder), kind_of_zoo(document.zoo).many))


def printed(document: dict[str, Any], many: str) -> str:
    """Return the film's accuracies for the terminal: in-domain means by state, frame by frame.

    Args:
        document: the film.
        many: what its samples are called.
    """
    states = [state for state in document["states"] if state not in ("pretrained", "expert")]
    inside = [task["name"] for task in document["tasks"] if task["domain"] == "in"]
    rows = [[document["title"], *states]]
    for number, text in enumerate(document["texts"]):
        if str(number) in document["failed"]:
            rows.append([text, f"refused: {document['failed'][str(number)]}"])
            continue
        rows.append([text, *(_mean(document["accuracy"][state], inside, number) for state in states)])
    whole = [row for row in rows if len(row) == len(rows[0])]
    widths = [max(len(row[column]) for row in whole) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=False)) for row in rows]
    counts = [task["evaluated"] for task in document["tasks"]]
    drawn = sum(task["drawn"] for task in document["tasks"])
    seeds = "seeds as listed" if document["place"] == SEED else f"seed {document['seed']}"
    lines.append(
        f"in-domain accuracy in percent on {span((min(counts), max(counts)))} evaluation {many} a task, protocol "
        f"{choice_title(document['protocol'])}, {seeds}; {drawn} {many} drawn"
    )
    return "\n".join([*lines, document["chance"]] if document["chance"] else lines)


def _mean(accuracy: dict[str, list[float | None]], tasks: list[str], frame: int) -> str:
    values = [accuracy[task][frame] for task in tasks]
    known = [value for value in values if value is not None]
    return rounded(sum(known) / len(known)) if known else "–"


def _count(text: str) -> int | str:
    if text != "all" and not text.isdigit():
        raise RecipeError(f"--images is '{text}'; give a whole number, or all.")
    return text if text == "all" else int(text)
