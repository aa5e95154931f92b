"""The model card that goes with exported weights: what they are, where they come from, what was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from ...catalog import MERGE_METHODS
from ...catalog.titles import method_title, params_in_effect
from ...recipe import MethodCall
from ...report import Report
from ...rounding import rounded
from ..run.receipt import Origin

PROTOCOLS = {
    "held_out": "adapted on other images than evaluated on",
    "paper": "adapted on the evaluated images without their labels (transductive)",
}
TEXT = "text"  # text models as transformers loads them
USE = {
    "peft": """\
```python
from peft import PeftModel
from transformers import CLIPVisionModelWithProjection

base = CLIPVisionModelWithProjection.from_pretrained("the base")
model = PeftModel.from_pretrained(base, "this folder").eval()
features = model(pixel_values=pixels).image_embeds
```

An adapter approximates the merge; how much of the task vector it leaves out stands under Files.""",
    "hf": """\
```python
from transformers import CLIPImageProcessor, CLIPVisionModelWithProjection

model = CLIPVisionModelWithProjection.from_pretrained("this folder").eval()
processor = CLIPImageProcessor.from_pretrained("this folder")
features = model(**processor(images=image, return_tensors="pt")).image_embeds
```""",
    TEXT: """\
```python
from transformers import AutoModel, AutoTokenizer

model = AutoModel.from_pretrained("this folder").eval()
tokenizer = AutoTokenizer.from_pretrained("this folder")
```

`config.json` names the class; one that ends in ForSequenceClassification has an expert's own classifier with it.""",
    "open_clip": """\
```python
from mergelens import load_merged

model = load_merged("open_clip_model.safetensors")
features = model(model.preprocess(image))
```

With open_clip itself, where the base brought its text encoder (see Files):

```python
import open_clip

model, preprocess = open_clip.create_model_from_pretrained("local-dir:this folder")
features = model.encode_image(preprocess(image)[None])
```""",
}


@dataclass(frozen=True)
class About:
    """Facts of a card that a kind of model has in common."""

    many: str  # its samples
    pipeline: str  # the hub's name of what it does
    tags: tuple[str, ...]
    words: str  # below the title


CLIP = About(
    "images",
    "image-feature-extraction",
    ("clip",),
    "A CLIP image encoder, merged from fine-tuned experts with MergeLens. Its output is the image embedding before "
    "normalisation; a head normalises it.",
)
_ABOUT = {
    TEXT: About(
        "texts",
        "feature-extraction",
        (),
        "A text model, merged from fine-tuned experts with MergeLens. Classifiers are each expert's own.",
    )
}
STRICTER = (  # licences by how much they ask for, the most permissive first
    ("cc0-1.0", "public domain", "unlicense"),
    ("mit", "bsd-2-clause", "bsd-3-clause", "apache-2.0"),
    ("cc-by-4.0", "cc-by-3.0"),
    ("cc-by-sa-4.0", "cc-by-sa-3.0"),
    ("lgpl-3.0", "mpl-2.0"),
    ("gpl-3.0",),
    ("agpl-3.0",),
    ("cc-by-nc-4.0",),
    ("cc-by-nc-sa-4.0",),
    ("cc-by-nc-nd-4.0",),
)


def model_card(
    report: Report, origins: Sequence[Origin], layout: str, files: Mapping[str, str], task: str | None = None
) -> str:
    """Write the card in Markdown.

    Args:
        report: of the run.
        origins: base and experts; empty where the zoo is no longer there.
        layout: ``hf`` or ``open_clip``.
        files: what lies beside the card → what it is.
        task: whose weights these are, where the merge makes others for every task; only its numbers are theirs.
    """
    if task is not None:
        report = _of_task(report, task)
    parts = [_front(layout, origins), _title(report, layout), USE[layout], _origins(report, origins), _method(report)]
    parts += [_measured(report, _ABOUT.get(layout, CLIP).many, task), _files(files)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _of_task(report: Report, task: str) -> Report:
    """Return a report of one task alone."""
    samples = {name: count for name, count in report.samples.items() if name == task}
    return report.model_copy(
        update={"tasks": {task: report.tasks[task]}, "samples": samples, "average": {}},
    )


def _front(layout: str, origins: Sequence[Origin]) -> str:
    """The hub's fields."""
    about = _ABOUT.get(layout, CLIP)
    document: dict[str, Any] = {
        "library_name": {"open_clip": "open_clip", "peft": "peft"}.get(layout, "transformers"),
        "pipeline_tag": about.pipeline,
        "tags": [*about.tags, "merge", "mergelens"],
        "license": licence(origins),
    }
    sources = [hub_id(origin.source) for origin in origins]
    if found := list(dict.fromkeys(source for source in sources if source)):
        document |= {"base_model": found, "base_model_relation": "merge"}
    return f"---\n{yaml.safe_dump(document, sort_keys=False, allow_unicode=True)}---"


def hub_id(source: str) -> str:
    """Return the hub's name of the model that a source names; '' where it names none."""
    bare = source.removeprefix("https://huggingface.co/").removeprefix("hf:").split("@")[0].strip("/")
    return bare if bare != source and re.fullmatch(r"[\w.-]+/[\w.-]+", bare) else ""


def licence(origins: Sequence[Origin]) -> str:
    """Return the strictest of the experts' licences; 'unknown' where one states none, 'other' where one is not known.

    A merge is made of all its experts, so it may be used as far as each of them may.
    """
    stated = [origin.licence.strip().lower() for origin in origins if origin.role == "expert"]
    if not stated or not all(stated):
        return "unknown"
    ranks = {name: rank for rank, names in enumerate(STRICTER) for name in names}
    if any(name not in ranks for name in stated):
        return stated[0] if len(set(stated)) == 1 else "other"
    return max(stated, key=ranks.__getitem__)


def _title(report: Report, layout: str) -> str:
    title = method_title(report.recipe.merge.method)
    zoo = _cell(report.zoo.title or report.zoo.name)
    made = f"# {title}: {len(report.experts)} experts of {zoo} merged\n\n"
    return made + _ABOUT.get(layout, CLIP).words


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
        lines.append(f"- Transform: {method_title(call.method)}{_params(call)}")
    merge = MERGE_METHODS.get(recipe.merge.method)
    lines.append(f"- Merge: {method_title(recipe.merge.method)}{_params(recipe.merge)}")
    if merge is not None:
        lines.append(f"- Source of the method: {merge.source}")
    if recipe.experts != "all" and any(expert.weight != 1 for expert in recipe.experts):
        listed = ", ".join(f"{_cell(expert.name)} {expert.weight:g}" for expert in recipe.experts)
        lines.append(f"- Weights of the experts: {listed}")
    for call in recipe.calibrators:
        lines.append(f"- Calibrator `{call.name}`: {method_title(call.method)}{_params(call)}")
    lines.append(f"- Training seeds: {', '.join(map(str, report.seeds))}; the weights here are the first seed's")
    return "\n".join(lines)


def _measured(report: Report, samples: str, task: str | None) -> str:
    if not report.accuracy:
        return f"## Measured\n\nNothing: the zoo had no heads or no {samples} when this was merged."
    tasks = list(report.tasks)
    last = ["mean, in-domain"] if task is None else []
    alone = "" if task is None else f"These are the weights for {_cell(report.tasks[task].title)} alone. "
    lines = [
        "## Measured",
        "",
        f"{alone}Accuracy in percent, mean over {len(report.seeds)} seed(s). Protocol `{report.protocol}`: "
        f"{PROTOCOLS[report.protocol]}; split seed {report.split_seed}.",
        "",
        "| state | " + " | ".join([*(_cell(report.tasks[name].title) for name in tasks), *last]) + " |",
        "|---|" + "---|" * (len(tasks) + len(last)),
    ]
    for state in report.states():
        row = report.accuracy[state]
        average = report.average.get(state)
        cells = [row.get(name) for name in tasks] + [average.within if average else None for _ in last]
        lines.append(f"| {_cell(state)} | " + " | ".join("–" if v is None else rounded(v) for v in cells) + " |")
    counts = "; ".join(
        f"{_cell(report.tasks[name].title)} {count.evaluate} ({count.adapt} to adapt on)"
        for name, count in report.samples.items()
    )
    return "\n".join([*lines, "", f"Evaluated {samples}: {counts}.{_heads(report)}"])


def _heads(report: Report) -> str:
    """Say how the heads were made with which accuracies were measured."""
    made: dict[str, list[str]] = {}
    for task in report.tasks.values():
        made.setdefault(task.head, []).append(_cell(task.title))
    if set(made) <= {""}:
        return ""
    if len(made) == 1:
        return f" Heads: {next(iter(made))}."
    parts = [f"{how} ({', '.join(titles)})" for how, titles in made.items() if how]
    return f" Heads: {'; '.join(parts)}."


def _files(files: Mapping[str, str]) -> str:
    return "\n".join(["## Files", "", *(f"- `{name}`: {what}" for name, what in files.items())])


def _params(call: MethodCall) -> str:
    params = params_in_effect(call)
    return f" ({', '.join(f'{name} {value}' for name, value in params.items())})" if params else ""


def _cell(text: object) -> str:
    """Return text from people or files as one table cell that shows exactly that."""
    plain = " ".join(str(text).split())
    for character in "\\|<>[]*`" if not plain.startswith("`") else "|<>":
        plain = plain.replace(character, "\\" + character)
    return plain or "–"
