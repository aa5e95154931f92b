"""Commands that align experts of another base, and measure what lies between two models."""

from __future__ import annotations

from typing import Annotated

import typer

from ..catalog import ALIGNMENTS
from ..manifest import locate_zoo, read_manifest
from ..recipe import ExpertChoice, Recipe
from ..rounding import rounded
from ..zoo.nouns import kind_of_zoo
from .merge import params_from
from .printing import progress_line, say
from .work import Quiet


def align(
    zoo: Annotated[str, typer.Argument(help="A zoo folder with experts that name another base in zoo.yaml.")],
    expert: Annotated[list[str] | None, typer.Option(help="Only this expert; again for more.")] = None,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(ALIGNMENTS)}.")] = "weight_matching",
    param: Annotated[
        list[str] | None, typer.Option(help="A parameter of the method, such as groups=units; again for more.")
    ] = None,
    called: Annotated[
        str, typer.Option(help="List the aligned expert as TASK-CALLED, and leave the expert as it is.")
    ] = "",
    quiet: Quiet = False,
) -> None:
    """Reorder units of experts so that they fit the zoo's base; what each expert computes stays the same.

    An expert that was trained from another base (`zoo finetune --from`) says so in zoo.yaml (`base: FILE`). The
    aligned weights are written into the folder `aligned`, and zoo.yaml names them. With --called the expert stays, so
    that controls (as_it_is, random_order) can be merged beside it.
    """
    from ..pipeline.local import align_experts
    from ..pipeline.zoos.aligning import images_in_words
    from ..store import Store
    from ..zoo.folder import Zoo

    request = {"zoo": zoo, "method": method, "params": params_from(param or []), "called": called}
    if expert:
        request["experts"] = expert
    records = align_experts(request, Store(), progress=None if quiet else progress_line())
    many = Zoo.open(zoo).modality.many
    for name, record in records.items():
        moved = ", ".join(f"{group} {share:.0%}" for group, share in record["moved"].items() if share)
        say(
            f"{name}: inner product with the base {record['before']:.4g} → {record['after']:.4g}; "
            f"moved {moved or 'nothing'}{', and the classifier with the features' if record['classifier'] else ''}; "
            f"features differ by {record['apart']:.1e} ({images_in_words(record, many)})"
        )
    say(f"The aligned experts are in {zoo}; they compute the same, which was checked in float64.")


def connect(
    zoo: Annotated[str, typer.Argument(help="A zoo's name or folder.")],
    start: Annotated[str, typer.Argument(help="An expert, or `pretrained`; its units stay in place.")],
    end: Annotated[str, typer.Argument(help="Another; its units are matched with the first one's.")],
    method: Annotated[str, typer.Option(help=f"One of {', '.join(ALIGNMENTS)}.")] = "weight_matching",
    param: Annotated[
        list[str] | None, typer.Option(help="A parameter of the method, such as groups=units; again for more.")
    ] = None,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Shuffle the end's units first, as a control.")] = False,
    seed: Annotated[int, typer.Option(help="Of the shuffle.")] = 0,
    points: Annotated[int, typer.Option(help="Models on the path, both ends included.")] = 7,
    images: Annotated[int, typer.Option(help="At most so many evaluation images a task.")] = 60,
    quiet: Quiet = False,
) -> None:
    """Measure the loss barrier between two models: as they are, with units matched, and repaired (REPAIR) as well.

    Also says which units match, and how many hidden units ZipIt would merge across both. Nothing is written to the zoo.
    """
    from ..figures.connection import barriers
    from ..pipeline.local import make_view
    from ..pipeline.views.connection import CONNECTION
    from ..store import Store

    asked = CONNECTION.request.parse(
        {
            "recipe": CONNECTION.reduced(_recipe_with(Recipe(zoo=zoo), (start, end))).model_dump(mode="json"),
            "start": start,
            "end": end,
            "method": method,
            "params": params_from(param or []),
            "shuffle": shuffle,
            "seed": seed,
            "points": points,
            "images": images,
        }
    )
    found = CONNECTION.read(make_view(CONNECTION, asked, Store(), progress=None if quiet else progress_line()))
    mean = barriers(found)
    counts = sorted({task["images"] for task in found["tasks"].values()})
    say(
        f"Loss barrier: as they are {rounded(mean['plain'], 3)}, matched {rounded(mean['aligned'], 3)}, repaired as "
        f"well {rounded(mean['repaired'], 3)} nats ({len(found['tasks'])} tasks, n = {counts[0]} to {counts[-1]} "
        f"{kind_of_zoo(zoo).many}, split seed {found['split_seed']})"
    )
    units = found["units"]
    for group, share in units["found"].items():
        say(
            f"{group}: {100 * share:.0f} % of units put right; likeness in the same place "
            f"{rounded(units['before'][group], 3)} → {rounded(units['after'][group], 3)}"
        )
    for group, shares in units["zips"].items():
        say(f"ZipIt, {group}: {100 * shares['same']:.0f} % in place, {100 * shares['across']:.0f} % across")


def _recipe_with(recipe: Recipe, names: tuple[str, ...]) -> Recipe:
    """Return a recipe with the zoo's own experts among some names, or all experts where there are none."""
    table = read_manifest(locate_zoo(recipe.zoo)).expert_table
    chosen = tuple(ExpertChoice(name=name) for name in names if name in table)
    return recipe.model_copy(update={"experts": chosen}) if chosen else recipe
