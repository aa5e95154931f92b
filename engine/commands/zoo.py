"""Commands on zoos."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import EngineError
from ..manifest import known_zoos, locate_zoo, read_manifest
from ..store.outputs import check_folder
from . import align, fetch, finetune, importing
from .printing import progress_line, say, say_line

if TYPE_CHECKING:
    from ..store import Store
    from ..types import Progress

app = typer.Typer(no_args_is_help=True, help="List, check and build zoos, and train their experts.")
app.command("init")(finetune.init)
app.command("fetch")(fetch.fetch)
app.command("finetune")(finetune.finetune)
app.command("distill")(finetune.distill)
app.command("align")(align.align)
app.command("connect")(align.connect)
app.command("import")(importing.import_zoo)


@app.command("list")
def list_zoos() -> None:
    """List the zoos that come with the app, and those that were imported."""
    from ..store import Store

    for known in known_zoos():
        manifest = read_manifest(locate_zoo(known.name))
        counts = f"{len(manifest.experts)} experts, {len(manifest.tasks)} tasks"
        say_line(f"{known.name}: {manifest.title} ({counts}){'' if known.ready else ', to be fetched'}")
    for folder in Store().zoos.list():
        say_line(f"{folder}: imported")


@app.command()
def check(zoo: Annotated[str, typer.Argument(help="A bundled zoo's name, or a path to a zoo folder.")]) -> None:
    """Check everything about a zoo: files, architecture, keys, shapes, values, heads, data."""
    from ..zoo.check import check_zoo

    findings = check_zoo(zoo, progress=lambda fraction, message="": None)
    for finding in findings:
        say_line(finding)


@app.command()
def unpack(
    archive: Annotated[Path, typer.Argument(help="A .zip of class folders (CLASS/… or SPLIT/CLASS/…).")],
    zoo: Annotated[Path, typer.Option(help="The zoo's folder.")],
    task: Annotated[str | None, typer.Option(help="Name of the task (default: the archive's).")] = None,
) -> None:
    """Unpack images into a zoo's folder, with every check; all of them appear or none."""
    from ..zoo.making.unpack import unpack as unpack_images

    folder = unpack_images(archive, zoo, task or archive.stem, progress_line())
    say(f"Unpacked to {folder}. Name it in zoo.yaml as `data: data/{folder.name}`.")


@app.command()
def build(
    name: Annotated[
        str,
        typer.Argument(
            help="Which zoo to build: mini8 (drawings), mini_text (sentences), mini8-recipes (mini8's base with "
            "experts of four tasks by several recipes of fine-tuning), mini8-two-bases (experts of two bases), or "
            "mini_text-joint (mini_text with models of all its tasks)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="A new folder for it.")],
    expert_seed: Annotated[int, typer.Option(help="Seed of the experts' fine-tuning.")] = 1,
    second: Annotated[bool, typer.Option(help="Also OUT-experts2: the same base, experts of the next seed.")] = False,
    twin: Annotated[bool, typer.Option(help="Also OUT-twin: a base of the next seed, and its experts.")] = False,
    on: Annotated[
        Path | None,
        typer.Option(
            help="Of mini8: a zoo built before, such as the bundled one, whose base and multitask reference are taken; "
            "experts alone are trained, in less than half of the time."
        ),
    ] = None,
    other: Annotated[
        str, typer.Option(help="Of mini8-two-bases: the zoo that the other base and the teachers are from.")
    ] = "",
    parts: Annotated[
        Path | None, typer.Option(help="A folder to keep trained parts in: an interrupted build goes on from them.")
    ] = None,
) -> None:
    """Build a small zoo from its seeds: images or sentences, base, experts, heads and build record."""
    from ..pipeline.zoos.derived import build_derived, derived_names

    if name in derived_names():
        if second or twin or parts or on:
            raise EngineError(f"{name} has no second set, twin or parts; its store keeps what is trained.")
        from ..store import Store

        settings: dict[str, Any] = {"seed": expert_seed, "other": other, "say": say, "progress": progress_line()}
        build_derived(name, out, Store(), finetune_experts_of, align_experts_of, **settings)
        return
    if other:
        raise EngineError(f"{name} is built from nothing else; leave --other out.")
    if on and (second or twin):
        raise EngineError("With --on one set of experts is trained; leave --second and --twin out, or --on.")
    for ending in ("", *(["-experts2"] if second else []), *(["-twin"] if twin else [])):
        check_folder(out.with_name(out.name + ending))
    if name == "mini_text":
        if second or twin or parts or on:
            raise EngineError("mini_text has no second set, twin or parts; leave these options out.")
        from ..zoo.mini_text.build import build as build_mini_text

        build_mini_text(out, expert_seed=expert_seed, progress=say)
        return
    if name != "mini8":
        known = ", ".join(["mini8", "mini_text", *derived_names()])
        raise EngineError(f"There is no recipe to build the zoo '{name}'; those there are: {known}.")
    from ..zoo.mini8.build import build as build_mini8

    build_mini8(
        out,
        expert_seed=expert_seed,
        second=second,
        twin=twin,
        on=on,
        parts=parts,
        progress=say,
    )


def finetune_experts_of(request: dict[str, Any], store: Store, progress: Progress) -> None:
    """Carry a request for fine-tuning out in this process."""
    from ..pipeline.local import finetune_experts

    finetune_experts(request, store, progress=progress)


def align_experts_of(request: dict[str, Any], store: Store, progress: Progress) -> None:
    """Carry a request for aligning experts out in this process."""
    from ..pipeline.local import align_experts

    align_experts(request, store, progress=progress)
