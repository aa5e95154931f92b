"""The command that turns recipes into mergekit's configurations and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import RecipeError
from ..store.outputs import check_file, new_file
from .work import Force


def convert(
    source: Annotated[Path, typer.Argument(help="A recipe, or a mergekit configuration.")],
    to: Annotated[Path, typer.Option(help="The YAML file to write.")],
    zoo: Annotated[str, typer.Option(help="The zoo whose experts a mergekit configuration means.")] = "",
    force: Force = False,
) -> None:
    """Turn a recipe into mergekit's YAML, or mergekit's YAML into a recipe."""
    from ..pipeline.export.mergekit import (
        expert_spellings,
        is_mergekit,
        model_paths,
        read_mergekit,
        write_mergekit,
    )
    from ..recipe import read_recipe, read_yaml

    check_file(to, (source,), force=force)
    if is_mergekit(read_yaml(source, RecipeError, "file")):
        if not zoo:
            raise RecipeError("Give --zoo, the zoo whose experts the configuration means.")
        text = read_mergekit(source, zoo, expert_spellings(zoo)).to_yaml()
    else:
        recipe = read_recipe(source)
        text = write_mergekit(recipe, *model_paths(recipe))
    with new_file(to, (source,), force=force) as file:
        file.write_text(text, "utf-8")
    typer.echo(f"Wrote {to}.")
