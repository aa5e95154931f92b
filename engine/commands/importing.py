"""The command that makes a zoo of checkpoints that people bring."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import RecipeError, ZooError
from .printing import say

MIB = 2**20
Architecture = Annotated[str, typer.Option(help="An open_clip name or config file; default: recognised.")]
QuickGelu = Annotated[
    bool | None, typer.Option("--quick-gelu/--no-quick-gelu", help="The activation; default: recognised.")
]
HeadWidth = Annotated[
    int | None, typer.Option(help="Width of an attention head (64 in most models); default: recognised.")
]
Preprocessing = Annotated[
    str,
    typer.Option(
        help="openai, inception, imagenet, a preprocessor_config.json or open_clip_config.json, or "
        "mean=R,G,B;std=R,G,B; default: recognised."
    ),
]
Templates = Annotated[
    str, typer.Option(help="Prompts of built heads: openai, fusionbench or a file of templates; default: published.")
]


def import_zoo(
    base: Annotated[Path | None, typer.Option(help="The pretrained model: a file or a Hugging Face folder.")] = None,
    expert: Annotated[
        list[str] | None,
        typer.Option(help="A fine-tuned model or LoRA adapter, [NAME=]PATH; give it once for each."),
    ] = None,
    head: Annotated[list[str] | None, typer.Option(help="A classification head, [TASK=]PATH.")] = None,
    data: Annotated[list[str] | None, typer.Option(help="A task's data, TASK=PATH.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Look for base, experts and heads in this folder.")] = None,
    out: Annotated[Path | None, typer.Option(help="The zoo folder to make.")] = None,
    name: Annotated[str, typer.Option(help="The zoo's name; default the folder's.")] = "",
    title: Annotated[str, typer.Option(help="The zoo's title, for people.")] = "",
    dtype: Annotated[str, typer.Option(help="keep, float32, float16 or bfloat16.")] = "keep",
    architecture: Architecture = "",
    quick_gelu: QuickGelu = None,
    head_width: HeadWidth = None,
    preprocess: Preprocessing = "",
    templates: Templates = "",
    logit_scale: Annotated[
        float | None, typer.Option(help="Factor of the heads' cosines, such as 100; default: recognised.")
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Tokens a text; longer ones are cut. Default 128, or what a text model can read.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only look at the files and say what would be done.")] = False,
) -> None:
    """Make a zoo of checkpoints: pickled modules, Hugging Face folders, LoRA adapters, open_clip files, text models."""
    from ..store import Store
    from ..zoo.importing import convert
    from ..zoo.importing.request import parse_request
    from ..zoo.importing.survey import survey
    from ..zoo.names import safe_name

    found = _found(folder)
    experts = [_item(text) for text in expert or found["experts"]]
    heads = [_item(text) for text in head or found["heads"]]
    start = base or found["base"]
    if start is None or not experts or out is None:
        raise RecipeError(_missing(folder, start, len(experts), len(heads), out))
    document = {"base": str(start), "experts": experts, "heads": heads, "out": str(out), "title": title}
    document |= {"name": name or safe_name(out.resolve().name), "dtype": dtype, "architecture": architecture}
    document |= {"quick_gelu": quick_gelu, "head_width": head_width, "preprocess": preprocess}
    document |= {"templates": templates, "length": length}
    request = parse_request({**document, "logit_scale": logit_scale, "data": _pairs(data or [])})
    if check:
        looked = survey(request, _quiet)
        say(summary_text(looked.to_json()))
        if looked.faults:
            raise typer.Exit(1)
        return
    summary = convert.import_zoo(request, _progress())
    say(summary_text(summary))
    Store().zoos.add(request.folder)
    say(f"Wrote {request.folder}. Check it with `zoo check {request.folder}`.")


def summary_text(summary: dict[str, Any]) -> str:
    """Return what was recognised, left out and warned about, one line each."""
    lines = [f"Architecture: {summary['architecture'] or 'not recognised'}"]
    lines += [f"    {fact['name']}: {fact['value']} ({fact['origin']})" for fact in summary["facts"]]
    for row in summary["rows"]:
        task = f" for {row['task']}" if row["task"] and row["task"] != row["name"] else ""
        lines.append(
            f"{row['role']} {row['name']}{task}: {row['layout']}, {row['dtype']}, {row['bytes'] / MIB:.1f} MiB"
        )
        lines += [f"    {note}" for note in row["notes"]]
    lines += summary["notes"]
    lines += [f"Warning: {text}" for text in summary["warnings"]]
    lines += [f"Fault: {fault['text']}" for fault in summary["faults"]]
    lines.append(f"{summary['bytes'] / MIB:.1f} MiB needed, {summary['free'] / MIB:,.0f} MiB free.")
    return "\n".join(lines)


def _missing(folder: Path | None, base: Path | None, experts: int, heads: int, out: Path | None) -> str:
    """Return what is still needed, and what a folder was found to hold."""
    wanted = [] if base else ["--base, the pretrained model"]
    wanted += [] if experts else ["--expert, a fine-tuned model (once for each)"]
    wanted += [] if out else ["--out, the folder to make"]
    text = f"Give {'; '.join(wanted)}."
    if folder is None:
        return f"{text} Or give --folder, a folder that holds them."
    held = (
        f"{experts} experts, {heads} heads and {'a base' if base else 'no file or folder that is called like a base'}"
    )
    return f"{folder} was found to hold {held}. {text}"


def _found(folder: Path | None) -> dict[str, Any]:
    """Return what lies in a folder, by the look of the names."""
    from ..zoo.importing.roots import find_candidates

    if folder is None:
        return {"base": None, "experts": [], "heads": []}
    if not folder.is_dir():
        raise ZooError(f"There is no folder {folder}.")
    found = find_candidates(folder, roots=(folder,))
    experts, heads = ([str(path) for path in paths] for paths in (found.experts, found.heads))
    return {"base": found.base, "experts": experts, "heads": heads}


def _item(text: str) -> dict[str, str]:
    name, separator, path = text.partition("=")
    if separator and re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        return {"name": name, "path": path}
    return {"path": text}


def _pairs(texts: list[str]) -> dict[str, str]:
    """Return the data of each task; of a task named twice one of the two would be lost."""
    found: dict[str, str] = {}
    for text in texts:
        name, separator, path = text.partition("=")
        if not separator:
            raise RecipeError(f"The data '{text}' have no task; write them as TASK=PATH.")
        if name in found:
            raise RecipeError(f"The task '{name}' has two data, {found[name]} and {path}; give --data once a task.")
        found[name] = path
    return found


def _quiet(fraction: float, message: str = "") -> None:
    pass


def _progress() -> Any:
    """Return a callback that prints every tenth report, so that logs stay short."""
    said = {"tenth": -1}

    def report(fraction: float, message: str = "") -> None:
        tenth = int(10 * fraction)
        if tenth > said["tenth"]:
            said["tenth"] = tenth
            say(f"{100 * fraction:3.0f} %  {message}", err=True)

    return report
