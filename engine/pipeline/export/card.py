"""The model card that goes with exported weights: what they are, where they come from, what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...catalog import MERGE_METHODS
from ...catalog.titles import method_title
from ...report import Report
from ...rounding import rounded

PROTOCOLS = {
    "held_out": "adapted on other images than evaluated on",
    "paper": "adapted on the evaluated images without their labels (transductive)",
}
USE = {
    "hf": """\
```python
from transformers import CLIPImageProcessor, CLIPVisionModelWithProjection

model = CLIPVisionModelWithProjection.from_pretrained("this folder").eval()
processor = CLIPImageProcessor.from_pretrained("this folder")
features = model(**processor(images=image, return_tensors="pt")).image_embeds
```""",
    "open_clip": """\
```python
from mergelens import load_merged

model = load_merged("merged.safetensors")
features = model(model.preprocess(image))
```

The tensors are named as in open_clip (`visual.…`); `open_clip_config.json` holds the architecture.""",
}


@dataclass(frozen=True)
class Origin:
    """A file that the merged model was made of."""

    role: str  # base or expert
    name: str
    task: str
    sha256: str
    source: str
    licence: str


def model_card(report: Report, origins: Sequence[Origin], layout: str, files: Mapping[str, str]) -> str:
    """Write the card in Markdown.

    Args:
        report: of the run.
        origins: base and experts; empty where the zoo is no longer there.
        layout: ``hf`` or ``open_clip``.
        files: what lies beside the card → what it is.
    """
    parts = [_front(layout), _title(report), USE[layout], _origins(report, origins), _method(report)]
    parts += [_measured(report), _files(files)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front(layout: str) -> str:
    library = {"hf": "transformers", "open_clip": "open_clip"}[layout]
    return f"---\nlibrary_name: {library}\npipeline_tag: image-feature-extraction\ntags: [clip, merge, mergelens]\n---"


def _title(report: Report) -> str:
    title = method_title(report.recipe.merge.method)
    zoo = _cell(report.zoo.title or report.zoo.name)
    return (
        f"# {title}: {len(report.experts)} experts of {zoo} merged\n\n"
        "A CLIP image encoder, merged from fine-tuned experts with MergeLens. Its output is the image embedding before "
        "normalisation; a zero-shot head normalises it."
    )


def _origins(report: Report, origins: Sequence[Origin]) -> str:
    lines = ["## Made of", ""]
    if not origins:
        lines.append(f"Experts: {', '.join(map(_cell, report.experts))}. Their files are no longer at hand.")
    else:
        lines += ["| role | name | task | sha256 of the file | source | licence |", "|---|---|---|---|---|---|"]
        lines += [
            "| " + " | ".join(map(_cell, (o.role, o.name, o.task, f"`{o.sha256}`", o.source, o.licence))) + " |"
            for o in origins
        ]
    lines += ["", f"Zoo `{_cell(report.zoo.name)}`, digest `{report.zoo.digest}`. Run identity `{report.identity}`."]
    return "\n".join(lines)


def _method(report: Report) -> str:
    recipe = report.recipe
    lines = ["## How", ""]
    for call in recipe.transforms:
        lines.append(f"- Transform: {method_title(call.method)}{_params(call.params)}")
    merge = MERGE_METHODS.get(recipe.merge.method)
    lines.append(f"- Merge: {method_title(recipe.merge.method)}{_params(recipe.merge.params)}")
    if merge is not None:
        lines.append(f"- Source of the method: {merge.source}")
    if recipe.experts != "all" and any(expert.weight != 1 for expert in recipe.experts):
        listed = ", ".join(f"{_cell(expert.name)} {expert.weight:g}" for expert in recipe.experts)
        lines.append(f"- Weights of the experts: {listed}")
    for call in recipe.calibrators:
        lines.append(f"- Calibrator `{call.name}`: {method_title(call.method)}{_params(call.params)}")
    lines.append(f"- Training seeds: {', '.join(map(str, report.seeds))}; the weights here are the first seed's")
    return "\n".join(lines)


def _measured(report: Report) -> str:
    if not report.accuracy:
        return "## Measured\n\nNothing: the zoo had no heads or no images when this was merged."
    tasks = list(report.tasks)
    lines = [
        "## Measured",
        "",
        f"Accuracy in percent, mean over {len(report.seeds)} seed(s). Protocol `{report.protocol}`: "
        f"{PROTOCOLS[report.protocol]}; split seed {report.split_seed}.",
        "",
        "| state | " + " | ".join(_cell(report.tasks[task].title) for task in tasks) + " | mean, in-domain |",
        "|---|" + "---|" * (len(tasks) + 1),
    ]
    for state in report.states():
        row = report.accuracy[state]
        average = report.average.get(state)
        cells = [row.get(task) for task in tasks] + [average.within if average else None]
        lines.append(f"| {_cell(state)} | " + " | ".join("–" if v is None else rounded(v) for v in cells) + " |")
    counts = "; ".join(
        f"{_cell(report.tasks[task].title)} {count.evaluate} ({count.adapt} to adapt on)"
        for task, count in report.samples.items()
    )
    return "\n".join([*lines, "", f"Evaluated images: {counts}."])


def _files(files: Mapping[str, str]) -> str:
    return "\n".join(["## Files", "", *(f"- `{name}`: {what}" for name, what in files.items())])


def _params(params: Mapping[str, Any]) -> str:
    return f" ({', '.join(f'{name} {value}' for name, value in params.items())})" if params else ""


def _cell(text: object) -> str:
    """Text from people or files as one table cell that shows exactly that."""
    plain = " ".join(str(text).split())
    for character in "\\|<>[]*`" if not plain.startswith("`") else "|<>":
        plain = plain.replace(character, "\\" + character)
    return plain or "–"
