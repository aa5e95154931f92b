"""Opening base, experts and heads of an import: what each is, what of it is taken over, what is left out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from ...errors import CheckpointError, ZooError
from ...layouts import OPEN_CLIP
from ...types import Weights
from ...weights import check_same_architecture
from ...weights.align import Selected
from ..encoders.architecture import VOCABULARY
from ..encoders.text import CLIP_VOCABULARY
from ..names import expert_name, safe_name
from .architecture import Fact, Given, recognise
from .found import Row, Survey, size_of
from .heads import common_scale, read_brought_heads
from .layouts import LAYOUTS, Encoder, find_encoder
from .peft import adapt
from .request import Item
from .sources import Joined, Source, open_source
from .tasks import own_name


def take_base(found: Survey) -> Weights:
    """Open the base, recognise its architecture and keep its text encoder where it is whole.

    Raises:
        EngineError: it is no complete CLIP ViT.
    """
    request = found.request
    source = open_source(Path(request.base).expanduser())
    if source.adapter:
        raise CheckpointError(f"{source.path.name} is a LoRA adapter; the base must be the complete model it was for.")
    encoder = find_encoder(source)
    given = Given(request.architecture, request.head_width, request.quick_gelu, request.preprocess)
    architecture = recognise(source, encoder.visual, given)
    found.architecture, found.base = architecture, source
    found.models["base"] = encoder.visual
    found.text = encoder.text if _is_whole(encoder.text) else _scale_only(encoder.text)
    row = _row("base", "base", "", source, encoder, found)
    row.notes.append(architecture.label)
    if encoder.text is not None and not _is_whole(encoder.text):
        row.notes.append(_leftovers(encoder.text))
    elif encoder.text is not None:
        row.bytes += size_of(encoder.text, request)
        lacking = "" if architecture.name else _lacking(architecture.config.get("text_cfg"), source)
        row.notes.append(
            f"with its text encoder, but {lacking}, so no heads can be built from it"
            if lacking
            else "with its text encoder, so heads can be built from class names"
        )
    found.rows.append(row)
    found.warnings += architecture.warnings
    return encoder.visual


def take_expert(found: Survey, item: Item, name: str, base: Weights) -> None:
    """Open an expert; a LoRA adapter is merged onto the base.

    Raises:
        EngineError: it is no model of the base's architecture.
    """
    source = open_source(Path(item.path).expanduser())
    if source.adapter:
        merged, dropped = adapt(source, base)
        encoder = Encoder("open_clip", Selected(merged, {n: n for n in merged.names}), None, dropped)
        row = _row("expert", name, "", source, encoder, found)
        row.layout = f"LoRA adapter of rank {source.adapter.get('r')}"
    else:
        encoder = find_encoder(source)
        row = _row("expert", name, "", source, encoder, found)
        if OPEN_CLIP.projection not in encoder.visual.names and OPEN_CLIP.projection in base.names:
            _add_projection(encoder, base)
            row.notes.append("no projection of its own; the base's is taken")
            found.projected.append(name)
            row.tensors, row.bytes = len(encoder.visual.names), size_of(encoder.visual, found.request)
    check_same_architecture(base, encoder.visual, name)
    if encoder.text is not None and encoder.layout != "huggingface":
        row.notes.append(_leftovers(encoder.text))
    elif encoder.text is not None:
        row.notes.append("its text encoder is left out")
    row.task = item.task or name
    found.models[name] = encoder.visual
    found.sources[name] = source
    found.rows.append(row)
    _check_activation(found, source, name)


def take_heads(found: Survey, item: Item, said: Sequence[str]) -> None:
    """Open a file of one head or several.

    Args:
        found: what was found so far, experts included.
        item: the file, and what a person calls it.
        said: every name that a person gave.

    Raises:
        EngineError: no zero-shot head, or a second one for a task.
    """
    path = Path(item.path).expanduser()
    tasks = {row.name: row.task for row in found.experts}
    known = [*tasks.values(), *said]
    for head in read_brought_heads(path):
        given = item.task or tasks.get(item.name, "") or item.name
        inside = tasks.get(head.name) or (own_name(safe_name(head.name), known) if head.name else "")
        name = (item.task or inside or given) if head.name else given or own_name(expert_name(PurePath(path)), known)
        if name in found.heads:
            raise ZooError(f"Two heads are for the task '{name}'. Leave one of them out.")
        found.heads[name] = head
        shape = tuple(head.rows.shape)
        scale = "unit rows" if head.log_scale is None else f"logit scale exp({head.log_scale:.4f}) taken out"
        row = Row("head", name, name, str(path), "classification head", "float32", 1, head.bytes)
        row.notes.append(f"{shape[0]} classes of dimension {shape[1]}, {scale}")
        found.rows.append(row)


def check_heads(found: Survey) -> None:
    """Check the heads among each other, against the base and the experts.

    Raises:
        CheckpointError: other dimensions than the base's embeddings, or different logit scales.
    """
    found.log_scale = common_scale(found.heads)
    width = found.models["base"].shape(OPEN_CLIP.projection)[1] if "base" in found.models else None
    for task, head in found.heads.items():
        if width is not None and head.rows.shape[1] != width:
            raise CheckpointError(
                f"The head of '{task}' has dimension {head.rows.shape[1]}; the base's embeddings have {width}."
            )
    tasks = {row.task for row in found.experts}
    missing = sorted(tasks - set(found.heads)) if found.heads else []
    if missing:
        found.warnings.append(f"No head for {', '.join(missing)}; these tasks cannot be scored.")
    extra = sorted(set(found.heads) - tasks)
    if extra:
        found.warnings.append(f"No expert for the heads of {', '.join(extra)}; they become out-of-domain tasks.")


def facts_of_models(found: Survey) -> list[Fact]:
    """Return whose projection the experts have, and the number format that weights are stored in."""
    models = [row for row in found.rows if row.role != "head"]
    if "base" not in found.models or not found.experts:
        return []
    whose = f"the base's, for {', '.join(found.projected)}" if found.projected else "each expert's own"
    dtypes = list(dict.fromkeys(row.dtype for row in models))
    own = "; ".join(f"{dtype} ({_names(models, dtype)})" for dtype in dtypes) if len(dtypes) > 1 else dtypes[0]
    given = found.request.dtype != "keep"
    kept = Fact("dtype", found.request.dtype, "given") if given else Fact("dtype", own, "read: the weights, and kept")
    return [Fact("projection", whose, "read: the tensors that each file has"), kept]


def _names(rows: Sequence[Row], dtype: str) -> str:
    return ", ".join(row.name for row in rows if row.dtype == dtype)


def _add_projection(encoder: Encoder, base: Weights) -> None:
    own = encoder.visual
    order = {
        name: (base if name == OPEN_CLIP.projection else own)
        for name in base.names
        if name in (*own.names, OPEN_CLIP.projection)
    }
    order |= {name: own for name in own.names if name not in order}
    encoder.visual = Joined(order)


def _row(role: str, name: str, task: str, source: Source, encoder: Encoder, found: Survey) -> Row:
    visual = encoder.visual
    dtypes = {visual.dtype(tensor) for tensor in visual.names}
    listed = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
    whole = next((tensor for tensor in visual.names if not visual.dtype(tensor).is_floating_point), None)
    if whole is not None:
        raise CheckpointError(
            f"{source.path.name} stores {whole} in {str(visual.dtype(whole)).removeprefix('torch.')}: it is quantised, "
            "and its scales are lost in this form. Take the file of floating-point weights."
        )
    notes = [f"left out: {what}" for what in encoder.dropped]
    size = size_of(visual, found.request)
    return Row(
        role, name, task, str(source.path), LAYOUTS[encoder.layout], listed, len(visual.names), size, notes=notes
    )


def _is_whole(text: Weights | None) -> bool:
    return text is not None and any(name.startswith("transformer.") for name in text.names)


def _scale_only(text: Weights | None) -> Weights | None:
    return Selected(text, {"logit_scale": "logit_scale"}) if text and "logit_scale" in text.names else None


def _lacking(text: Any, source: Source) -> str:
    """Return what heads from a base's text encoder would lack; '' for nothing."""
    if not isinstance(text, Mapping):
        return "no config says how it is built"
    size = text.get("vocab_size", CLIP_VOCABULARY)
    if size == CLIP_VOCABULARY or (source.files[0].parent / VOCABULARY).is_file():
        return ""
    return f"it reads {size} tokens, not CLIP's {CLIP_VOCABULARY}, and no {VOCABULARY} lies beside it"


def _leftovers(text: Weights) -> str:
    count = sum(math.prod(text.shape(name)) for name in text.names)
    return f"left out: {len(text.names)} text-side tensors ({count / 1e6:.1f} M parameters)"


def _check_activation(found: Survey, source: Source, name: str) -> None:
    vision = source.config.get("vision_config", source.config)
    stated = vision.get("hidden_act") if isinstance(vision, dict) else None
    own = found.architecture.config.get("quick_gelu") if found.architecture else None
    if stated and own is not None and (stated == "quick_gelu") != bool(own):
        ours = "QuickGELU" if own else "GELU"
        found.warnings.append(f"Expert '{name}' was trained with {stated}; the base is taken to have {ours}.")
