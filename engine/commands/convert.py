"""The command that turns recipes and zoos into files of other tools, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..errors import RecipeError
from ..store.outputs import check_file, new_file
from .inputs import files_of_zoo
from .printing import say
from .work import Force

Tool = Literal["mergekit", "fusionbench"]


def convert(
    source: Annotated[
        Path,
        typer.Argument(help="A recipe or a zoo.yaml; a mergekit configuration; a FusionBench method or model pool."),
    ],
    to: Annotated[Path, typer.Option(help="The YAML file to write.")],
    part: Annotated[
        str, typer.Option(help="Of several merges in one mergekit file: its name; default: the last.")
    ] = "",
    zoo: Annotated[str, typer.Option(help="The zoo whose experts a mergekit or FusionBench file means.")] = "",
    tool: Annotated[Tool, typer.Option("--for", help="The tool that a recipe is written for.")] = "mergekit",
    force: Force = False,
) -> None:
    """Turn recipes into mergekit's or FusionBench's YAML and back, and zoos into FusionBench's model pools and back."""
    from ..pipeline.foreign import mergekit_multi, mergekit_read
    from ..recipe import read_yaml
    from ..zoo.folder import Zoo

    inputs = (source, *files_of_zoo(zoo))
    check_file(to, inputs, force=force)
    if mergekit_multi.is_several(source):
        named = _needed(zoo)
        spellings = mergekit_read.expert_spellings(named)
        recipe = mergekit_multi.read_several(
            source, named, spellings, part, lambda: mergekit_read.count_blocks(Zoo.open(named))
        )
        text, remarks = recipe.to_yaml(), mergekit_read.remarks(recipe)
    else:
        text, remarks = _converted(source, read_yaml(source, RecipeError, "file"), zoo, tool)
    with new_file(to, inputs, force=force) as file:
        file.write_text(text, "utf-8")
    for remark in remarks:
        say(remark)
    say(f"Wrote {to}.")


def _converted(source: Path, document: Any, zoo: str, tool: Tool) -> tuple[str, list[str]]:
    """Return a file in its other form, and what a person should know of it."""
    from ..pipeline.foreign import fusionbench, fusionbench_pool, mergekit, mergekit_read
    from ..recipe import read_recipe
    from ..zoo.folder import Zoo

    if mergekit_read.is_mergekit(document):
        named = _needed(zoo)
        spellings = mergekit_read.expert_spellings(named)
        recipe = mergekit_read.read_mergekit(
            source, named, spellings, lambda: mergekit_read.count_blocks(Zoo.open(named))
        )
        return recipe.to_yaml(), mergekit_read.remarks(recipe)
    if fusionbench_pool.is_fusionbench_pool(document):
        return fusionbench_pool.read_pool(source), ["Fetch its files with `zoo fetch`."]
    if fusionbench.is_fusionbench_method(document):
        opened = Zoo.open(_needed(zoo))
        experts = list(opened.manifest.expert_table)
        recipe = fusionbench.read_method(source, zoo, experts, lambda: fusionbench.projection_size(opened))
        return recipe.to_yaml(), []
    if isinstance(document, dict) and "backbone" in document:
        from ..manifest import locate_description, read_manifest

        return fusionbench_pool.write_pool(read_manifest(locate_description(str(source)))), []
    recipe = read_recipe(source)
    if tool == "fusionbench":
        return fusionbench.write_method(recipe), fusionbench.remarks(recipe)
    return mergekit.write_mergekit(recipe, *mergekit.model_paths(recipe)), mergekit_read.remarks(recipe)


def _needed(zoo: str) -> str:
    if not zoo:
        raise RecipeError("Give --zoo, the zoo whose experts the file means.")
    return zoo
