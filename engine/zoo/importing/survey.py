"""What an import would do, found out before anything is written: recognised, dropped, doubtful, wrong."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor

from ...catalog.datasets import find_dataset
from ...errors import CheckpointError, EngineError, ZooError
from ...types import Progress, Weights
from ...weights import check_same_architecture
from ...weights.align import Selected
from ...weights.families import PROJECTION, SAMPLED, family_warnings, same
from .architecture import Architecture, recognise
from .heads import BroughtHead, common_scale, read_brought_heads
from .layouts import LAYOUTS, Encoder, find_encoder
from .names import distinct, expert_name, known_task, safe_name
from .peft import adapt
from .request import RESERVED, ImportRequest, Item
from .sources import Source, open_source

FAR = 0.5  # ‖θ_k − θ₀‖ / ‖θ₀‖ over the sampled tensors; fine-tuning moves weights by a few hundredths


@dataclass
class Row:
    """One file as it was recognised, for people and for the manifest."""

    role: str  # base, expert or head
    name: str
    task: str
    path: str
    layout: str
    dtype: str = ""
    tensors: int = 0
    bytes: int = 0
    distance: float | None = None  # relative distance to the base over the sampled tensors
    notes: list[str] = field(default_factory=list)


@dataclass
class Survey:
    """Everything that was found. ``models`` and ``heads`` are for the conversion, the rest is JSON."""

    request: ImportRequest
    rows: list[Row] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    architecture: Architecture | None = None
    base: Source | None = None
    text: Weights | None = None  # the base's whole text encoder
    models: dict[str, Weights] = field(default_factory=dict)  # base and experts by name
    heads: dict[str, BroughtHead] = field(default_factory=dict)  # by task
    log_scale: float | None = None
    free: int = 0  # bytes on the target's disk

    @property
    def needed(self) -> int:
        """Bytes that the zoo will take."""
        return sum(row.bytes for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """What pages and the command line show."""
        return {
            "name": self.request.name,
            "token": self.request.token,
            "out": str(self.request.folder),
            "architecture": self.architecture.label if self.architecture else "",
            "rows": [asdict(row) for row in self.rows],
            "warnings": self.warnings,
            "faults": self.faults,
            "bytes": self.needed,
            "free": self.free,
        }


def survey(request: ImportRequest, progress: Progress) -> Survey:
    """Open every file, read their structure and a few small tensors, and compare.

    Faults are collected, so that everything wrong is said at once.
    """
    found = Survey(request)
    base = _attempt(found, lambda: _take_base(found))
    names = distinct(item.name or expert_name(PurePath(item.path)) for item in request.experts)
    names = [f"expert_{name}" if name in RESERVED else name for name in names]
    for number, (item, name) in enumerate(zip(request.experts, names, strict=True)):
        progress(number / (len(names) + 1), f"Looking at {name}")
        if base is not None:
            _attempt(found, lambda item=item, name=name: _take_expert(found, item, name, base))
    progress(len(names) / (len(names) + 1), "Looking at heads and the disk")
    for item in request.heads:
        _attempt(found, lambda item=item: _take_heads(found, item))
    _attempt(found, lambda: _check_heads(found))
    _attempt(found, lambda: _check_target(found))
    _compare_families(found)
    return found


def _attempt(found: Survey, action: Callable[[], Any]) -> Any:
    try:
        return action()
    except EngineError as error:
        found.faults.append(str(error))
        return None


def _take_base(found: Survey) -> Weights:
    request = found.request
    source = open_source(Path(request.base).expanduser())
    if source.adapter:
        raise CheckpointError(f"{source.path.name} is a LoRA adapter; the base must be the complete model it was for.")
    encoder = find_encoder(source)
    architecture = recognise(source, encoder.visual, request.architecture, request.quick_gelu)
    found.architecture, found.base = architecture, source
    found.models["base"] = encoder.visual
    found.text = encoder.text if _is_whole(encoder.text) else _scale_only(encoder.text)
    row = _row("base", "base", "", source, encoder, request)
    if encoder.text is not None and not _is_whole(encoder.text):
        row.notes.append(_leftovers(encoder.text))
    elif encoder.text is not None:
        row.bytes += _size(encoder.text, request)
        row.notes.append("with its text encoder, so heads can be built from class names")
    row.notes.insert(0, architecture.label)
    found.rows.append(row)
    found.warnings += architecture.warnings
    return encoder.visual


def _take_expert(found: Survey, item: Item, name: str, base: Weights) -> None:
    source = open_source(Path(item.path).expanduser())
    if source.adapter:
        merged, dropped = adapt(source, base)
        encoder = Encoder("open_clip", Selected(merged, {n: n for n in merged.names}), None, dropped)
        row = _row("expert", name, item.task, source, encoder, found.request)
        row.layout = f"LoRA adapter of rank {source.adapter.get('r')}"
    else:
        encoder = find_encoder(source)
        row = _row("expert", name, item.task, source, encoder, found.request)
        if PROJECTION not in encoder.visual.names and PROJECTION in base.names:
            _add_projection(encoder, base)
            row.notes.append("no projection of its own; the base's is taken")
            row.tensors, row.bytes = len(encoder.visual.names), _size(encoder.visual, found.request)
    check_same_architecture(base, encoder.visual, name)
    if encoder.text is not None and encoder.layout != "huggingface":
        row.notes.append(_leftovers(encoder.text))
    elif encoder.text is not None:
        row.notes.append("its text encoder is left out")
    row.task = safe_name(item.task) if item.task else (known_task(name) or name)
    found.models[name] = encoder.visual
    found.rows.append(row)
    _check_activation(found, source, name)


def _add_projection(encoder: Encoder, base: Weights) -> None:
    own = encoder.visual
    order = {name: (base if name == PROJECTION else own) for name in base.names if name in (*own.names, PROJECTION)}
    order |= {name: own for name in own.names if name not in order}
    from .sources import Joined

    encoder.visual = Joined(order)


def _row(role: str, name: str, task: str, source: Source, encoder: Encoder, request: ImportRequest) -> Row:
    dtypes = {str(encoder.visual.dtype(n)).removeprefix("torch.") for n in encoder.visual.names}
    return Row(
        role,
        name,
        task,
        str(source.path),
        LAYOUTS[encoder.layout],
        dtype=", ".join(sorted(dtypes)),
        tensors=len(encoder.visual.names),
        bytes=_size(encoder.visual, request),
        notes=[f"left out: {what}" for what in encoder.dropped],
    )


def _size(weights: Weights, request: ImportRequest) -> int:
    wanted = None if request.dtype == "keep" else getattr(torch, request.dtype)
    return sum(
        math.prod(weights.shape(name))
        * (wanted if wanted and weights.dtype(name).is_floating_point else weights.dtype(name)).itemsize
        for name in weights.names
    )


def _is_whole(text: Weights | None) -> bool:
    return text is not None and any(name.startswith("transformer.") for name in text.names)


def _scale_only(text: Weights | None) -> Weights | None:
    return Selected(text, {"logit_scale": "logit_scale"}) if text and "logit_scale" in text.names else None


def _leftovers(text: Weights) -> str:
    count = sum(math.prod(text.shape(name)) for name in text.names)
    return f"left out: {len(text.names)} text-side tensors ({count / 1e6:.1f} M parameters)"


def _check_activation(found: Survey, source: Source, name: str) -> None:
    stated = source.config.get("vision_config", source.config).get("hidden_act") if source.config else None
    if stated and found.architecture and (stated == "quick_gelu") != bool(found.architecture.config["quick_gelu"]):
        ours = "QuickGELU" if found.architecture.config["quick_gelu"] else "GELU"
        found.warnings.append(f"Expert '{name}' was trained with {stated}; the base is taken to have {ours}.")


def _take_heads(found: Survey, item: Item) -> None:
    path = Path(item.path).expanduser()
    tasks = {row.name: row.task for row in found.rows if row.role == "expert"}
    for head in read_brought_heads(path):
        given = item.task or tasks.get(item.name, "") or known_task(item.name) or item.name
        name = head.name or given or expert_name(PurePath(item.path))
        name = tasks.get(name, known_task(name) or safe_name(name)) if not item.task else safe_name(name)
        if name in found.heads:
            raise ZooError(f"Two heads are for the task '{name}'. Leave one of them out.")
        found.heads[name] = head
        known = find_dataset(name)
        if known and known.count != len(head.rows):
            found.warnings.append(
                f"The head of '{name}' has {len(head.rows)} classes; the data set {known.title} has {known.count}. "
                "Its classes are numbered; write their names into zoo.yaml, in the head's order."
            )
        shape = tuple(head.rows.shape)
        scale = "unit rows" if head.log_scale is None else f"logit scale exp({head.log_scale:.4f}) taken out"
        row = Row("head", name, name, str(path), "classification head", "float32", 1, head.bytes)
        row.notes.append(f"{shape[0]} classes of dimension {shape[1]}, {scale}")
        found.rows.append(row)


def _check_heads(found: Survey) -> None:
    found.log_scale = common_scale(found.heads)
    width = found.models["base"].shape(PROJECTION)[1] if "base" in found.models else None
    for task, head in found.heads.items():
        if width is not None and head.rows.shape[1] != width:
            raise CheckpointError(
                f"The head of '{task}' has dimension {head.rows.shape[1]}; the base's embeddings have {width}."
            )
    tasks = {row.task for row in found.rows if row.role == "expert"}
    missing = sorted(tasks - set(found.heads)) if found.heads else []
    if missing:
        found.warnings.append(f"No head for {', '.join(missing)}; these tasks cannot be scored.")
    extra = sorted(set(found.heads) - tasks)
    if extra:
        found.warnings.append(f"No expert for the heads of {', '.join(extra)}; they become out-of-domain tasks.")


def _check_target(found: Survey) -> None:
    folder = found.request.folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ZooError(f"{folder} exists already and is not empty. Give another name or place.")
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    found.free = shutil.disk_usage(place).free
    if found.needed > 0.98 * found.free:
        raise ZooError(
            f"The zoo needs {found.needed / 1e9:.2f} GB; {found.free / 1e9:.2f} GB are free at {place}. "
            "Choose another place, or store it in half precision."
        )


def _compare_families(found: Survey) -> None:
    """Compare every expert with the base where it is cheap: what was trained, and is it the right base?"""
    if "base" not in found.models or found.faults:
        return
    base = {name: found.models["base"].tensor(name) for name in SAMPLED if name in found.models["base"].names}
    trained: dict[str, set[str]] = {}
    for row in found.rows:
        if row.role != "expert":
            continue
        tensors = {name: found.models[row.name].tensor(name) for name in base}
        trained[row.name] = {name for name in base if not same(base[name], tensors[name])}
        row.distance = _distance(base, tensors)
        if row.distance > FAR:
            found.warnings.append(
                f"Expert '{row.name}' is {100 * row.distance:.0f} % away from the base; fine-tuning moves weights by a "
                "few percent. It probably started from another model."
            )
    with_projection = sorted(name for name, names in trained.items() if PROJECTION in names)
    without = sorted(set(trained) - set(with_projection))
    if with_projection and without:
        found.warnings.append(
            f"Two families are mixed: the projection was trained in {_listed(with_projection)}, and is the base's in "
            f"{_listed(without)}. Their task vectors differ in kind; compare results within one family."
        )
    found.warnings += family_warnings({name: names - {PROJECTION} for name, names in trained.items()})


def _distance(base: Mapping[str, Tensor], expert: Mapping[str, Tensor]) -> float:
    squares = sum(float((expert[n].double() - base[n].double()).square().sum()) for n in base)
    norm = sum(float(tensor.double().square().sum()) for tensor in base.values())
    value = math.sqrt(squares / norm) if norm > 0 else 0.0
    return value if math.isfinite(value) else math.inf


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
