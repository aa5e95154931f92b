"""The command that turns recipes into mergekit's configurations and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import EngineError, RecipeError


def convert(
    source: Annotated[Path, typer.Argument(help="A recipe, or a mergekit configuration.")],
    to: Annotated[Path, typer.Option(help="The YAML file to write.")],
    zoo: Annotated[str, typer.Option(help="The zoo whose experts a mergekit configuration means.")] = "",
) -> None:
    """Turn a recipe into mergekit's YAML, or mergekit's YAML into a recipe."""
    from ..catalog.mergekit import is_mergekit, read_mergekit, write_mergekit
    from ..pipeline.export.mergekit import expert_spellings, model_paths
    from ..recipe import read_recipe, read_yaml

    if to.exists():
        raise EngineError(f"{to} exists already; give a new name.")
    if is_mergekit(read_yaml(source, RecipeError, "file")):
        if not zoo:
            raise RecipeError("Give --zoo, the zoo whose experts the configuration means.")
        text = read_mergekit(source, zoo, expert_spellings(zoo)).to_yaml()
    else:
        recipe = read_recipe(source)
        text = write_mergekit(recipe, *model_paths(recipe))
    to.write_text(text, "utf-8")
    typer.echo(f"Wrote {to}.")
