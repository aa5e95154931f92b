"""Recognition of the layout of a checkpoint's tensors, and its image encoder under canonical names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...errors import CheckpointError
from ...types import Weights
from ...weights.align import PREFIX, TEXT_NAMES, TEXT_PREFIXES, Selected, canonical_order
from ...weights.huggingface import FromHuggingFace, complete_names
from .sources import Source

OPEN_CLIP_ANCHOR, HUGGING_FACE_ANCHOR = "conv1.weight", "embeddings.patch_embedding.weight"
HEAD_PREFIXES = ("classification_head.", "classification_heads.", "classifier.", "head.")
SCRIPT_VALUES = ("input_resolution", "context_length", "vocab_size")
LAYOUTS = {"open_clip": "open_clip state dict", "module": "whole pickled module", "huggingface": "Hugging Face CLIP"}


@dataclass
class Encoder:
    """An image encoder found in a checkpoint."""

    layout: str  # a row of LAYOUTS
    visual: Weights  # ``visual.*``, in canonical order
    text: Weights | None = None  # the text side under open_clip's names, complete or what is left of it
    dropped: list[str] = field(default_factory=list)  # what is not taken over, one phrase each


def find_encoder(source: Source) -> Encoder:
    """Find the image encoder in a checkpoint.

    Raises:
        CheckpointError: there is none, or tensors that belong to neither encoder nor head.
    """
    names = source.weights.names
    outer = _outer(names, HUGGING_FACE_ANCHOR, ("vision_model.", ""), "class_embedding", 1)
    if outer is not None:
        return _hugging_face(source, outer)
    outer = _outer(names, OPEN_CLIP_ANCHOR, (PREFIX, ""), "class_embedding", 0)
    if outer is not None:
        return _open_clip(source, outer)
    if any(name.endswith((OPEN_CLIP_ANCHOR, "layer1.0.conv1.weight")) for name in names):
        raise CheckpointError(
            f"{source.path.name} holds a convolutional encoder (no class_embedding); a CLIP ViT is needed."
        )
    listed = ", ".join(f"{name:.80}" for name in names[:4])
    raise CheckpointError(
        f"{source.path.name} holds no CLIP image encoder: none of its {len(names):,} tensors ({listed} …) is a patch "
        "embedding of a ViT in open_clip's or Hugging Face's naming."
    )


def _outer(names: Sequence[str], anchor: str, insides: tuple[str, ...], sibling: str, up: int) -> str | None:
    """Return what stands before the encoder's own names, found by a tensor that every encoder has once.

    Args:
        names: all names in the file.
        anchor: how that tensor's name ends.
        insides: the encoder's own prefix, and none.
        sibling: a tensor that lies beside it (or ``up`` levels above), so that no other convolution is taken for it.
        up: 0 or 1.
    """
    known = set(names)
    places = []
    for name in names:
        if name.endswith(anchor) and (name == anchor or name[-len(anchor) - 1] == "."):
            place = name.removesuffix(anchor)
            beside = place + ("embeddings." if up else "") + sibling
            if beside in known:
                places.append(place)
    if len(places) > 1:
        raise CheckpointError(f"The file holds {len(places)} image encoders ({', '.join(places[:3])}); one is needed.")
    if not places:
        return None
    inside = next(inside for inside in insides if places[0].endswith(inside))
    return places[0].removesuffix(inside) if inside else places[0]


def _open_clip(source: Source, outer: str) -> Encoder:
    names = source.weights.names
    prefixed = f"{outer}{PREFIX}{OPEN_CLIP_ANCHOR}" in names
    start = outer + PREFIX if prefixed else outer
    visual, text, dropped, strangers = {}, {}, [], []
    for name in names:
        bare = name.removeprefix(outer)
        if name.startswith(start) and not _is_head(bare):
            visual[PREFIX + name.removeprefix(start)] = name
        elif prefixed and name.startswith(outer) and _is_text(bare):
            text[bare.removeprefix("text.")] = name
        elif _is_head(bare) or bare in SCRIPT_VALUES:
            dropped.append(bare)
        else:
            strangers.append(name)
    if strangers:
        raise CheckpointError(
            f"{source.path.name} holds {', '.join(f'{name:.100}' for name in strangers[:4])}, which belong(s) to no "
            "CLIP image encoder. Remove them or choose another file."
        )
    layout = "module" if source.pickled else "open_clip"
    return _encoder(layout, Selected(source.weights, visual), Selected(source.weights, text) if text else None, dropped)


def _hugging_face(source: Source, outer: str) -> Encoder:
    taken = [name for name in source.weights.names if not _is_head(name.removeprefix(outer))]
    dropped = [name for name in source.weights.names if name not in set(taken)]
    found = FromHuggingFace(source.weights, complete_names(taken, outer))
    visual = {name: name for name in found.names if name.startswith(PREFIX)}
    text = {name: name for name in found.names if not name.startswith(PREFIX)}
    return _encoder("huggingface", Selected(found, visual), Selected(found, text) if text else None, dropped)


def _encoder(layout: str, visual: Selected, text: Selected | None, dropped: list[str]) -> Encoder:
    ordered = {name: visual.stored[name] for name in canonical_order(visual.stored)}
    phrases = [f"{len(dropped)} tensors of a head or a script ({', '.join(dropped[:3])})"] if dropped else []
    return Encoder(layout, Selected(visual.weights, ordered), text, phrases)


def _is_head(name: str) -> bool:
    return name.startswith(HEAD_PREFIXES)


def _is_text(name: str) -> bool:
    return name in TEXT_NAMES or name.startswith(TEXT_PREFIXES)
