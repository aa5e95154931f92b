"""The command that only merges weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
import yaml

from ..errors import RecipeError
from ..recipe import MethodCall, yaml_fault
from ..store.outputs import check_file
from .printing import say
from .work import Force


def merge(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe; or give --base and --expert.")] = None,
    out: Annotated[Path, typer.Option(help="The safetensors file to write.")] = Path("merged.safetensors"),
    base: Annotated[Path | None, typer.Option(help="The pretrained weights.")] = None,
    expert: Annotated[list[Path] | None, typer.Option(help="An expert's weights; give it once for each.")] = None,
    method: Annotated[str | None, typer.Option(help="Merge method; without it task_arithmetic.")] = None,
    param: Annotated[list[str] | None, typer.Option(help="A parameter of the method, such as scaling=0.3.")] = None,
    transform: Annotated[list[str] | None, typer.Option(help="A transform, such as lwptv or lwptv:eta=0.7.")] = None,
    receipt: Annotated[bool, typer.Option(help="Write beside the file what came from which expert.")] = True,
    force: Force = False,
) -> None:
    """Merge weights and write them; no images, no heads."""
    from ..pipeline.export.merge_files import merge_files, merge_recipe
    from ..pipeline.run.receipt import beside

    if out.suffix != ".safetensors":
        raise RecipeError(f"{out} is to be a safetensors file; give a name that ends in .safetensors.")
    if (recipe is None) == (base is None):
        raise RecipeError("Give either a recipe, or --base and --expert files.")
    if recipe is not None:
        if method is not None or expert or param or transform:
            raise RecipeError(
                "A recipe says itself what is merged and how; leave --expert, --method, --param and --transform out."
            )
        from ..recipe import read_recipe

        check_file(out, (recipe,), force=True)  # what the recipe names is looked at below
        seconds = merge_recipe(read_recipe(recipe), out, say, force=force, receipt=receipt)
    else:
        transforms = [_call(text) for text in transform or []]
        call = MethodCall(method=method or "task_arithmetic", params=params_from(param or []))
        files = expert or []
        seconds = merge_files(base, files, call, transforms, out, say=say, force=force, receipt=receipt)
    say(f"Wrote {out} ({out.stat().st_size / 2**20:.1f} MiB) in {seconds:.2f} s.")
    if receipt:
        say(f"Wrote {beside(out)}, which says what came from which expert.")


def params_from(items: list[str]) -> dict[str, object]:
    """Read parameters written as name=value.

    Raises:
        RecipeError: one has no value or one that is no YAML, or two have the same name.
    """
    found = {}
    for item in items:
        name, separator, value = item.partition("=")
        if not separator:
            raise RecipeError(f"The parameter '{item}' has no value; write it as name=value.")
        if name.strip() in found:
            raise RecipeError(f"The parameter '{name.strip()}' is given twice; give it once.")
        try:
            found[name.strip()] = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError) as error:
            raise RecipeError(f"The value of '{item:.200}' cannot be read ({yaml_fault(error):.200}).") from error
    return found


def _call(text: str) -> MethodCall:
    name, _, params = text.partition(":")
    return MethodCall(method=name, params=params_from([item for item in params.split(",") if item]))
