"""Making sure that checkpoints fit together before anything is computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..layouts import LAYOUTS, OPEN_CLIP, Layout, bare
from ..types import Progress, Weights
from .files import read_into
from .parts import ReadPart, open_parts

PREFIX = OPEN_CLIP.prefix
# What checkpoints of image encoders from 2022–2024 still carry of the text encoder; it was never trained.
TEXT_NAMES = frozenset(
    {"positional_embedding", "text_projection", "logit_scale", "logit_bias", "token_embedding.weight", "attn_mask"}
)
TEXT_PREFIXES = ("ln_final.", "transformer.", "text.")
TEXT_MARKS = ("token_embedding.weight", "text_projection", "ln_final.weight")
_STAGES = ("class_embedding", "positional_embedding", "proj", "conv1", "ln_pre", "transformer", "trunk", "ln_post")
_PARTS = (
    "ln_1",
    "attn",
    "ls_1",
    "ln_2",
    "mlp",
    "ls_2",
    "in_proj_weight",
    "in_proj_bias",
    "out_proj",
    "weight",
    "bias",
    "attention",
    "self",
    "intermediate",
    "output",
)


@dataclass(frozen=True)
class Selected:
    """Some tensors of other weights, under other names."""

    weights: Weights
    stored: Mapping[str, str]  # name → name in the weights

    @property
    def names(self) -> tuple[str, ...]:
        """Return the new names, in their order."""
        return tuple(self.stored)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        return self.weights.shape(self.stored[name])

    def dtype(self, name: str) -> torch.dtype:
        """Return the stored dtype of one tensor."""
        return self.weights.dtype(self.stored[name])

    def tensor(self, name: str) -> Tensor:
        """Read one tensor."""
        return self.weights.tensor(self.stored[name])

    def read_into(self, name: str, out: Tensor) -> None:
        """Read one tensor into ``out``."""
        read_into(self.weights, self.stored[name], out)

    def open_parts(self, name: str) -> AbstractContextManager[ReadPart]:
        """Open a function that reads parts of one tensor, in its stored dtype."""
        return open_parts(self.weights, self.stored[name], self.dtype(name))


def encoder_part(weights: Weights) -> Selected:
    """Select the encoder's tensors, named ``visual.…`` of images or ``bert.…`` of texts.

    Text-side leftovers of old CLIP checkpoints are dropped, and heads of text classifiers. Names without the prefix
    are accepted only where a file holds nothing but an image encoder, because ``transformer.…`` and
    ``positional_embedding`` name parts of both of CLIP's encoders.

    Raises:
        CheckpointError: no encoder, an ambiguous file, or tensors that belong to none.
    """
    names = weights.names
    for layout in LAYOUTS:
        if layout is not OPEN_CLIP and any(name.startswith(layout.prefix) for name in names):
            return _prefixed(weights, layout)
    prefixed = [name for name in names if name.startswith(PREFIX)]
    if prefixed:
        strangers = [name for name in names if not name.startswith(PREFIX) and not _is_text(name)]
        if strangers:
            raise CheckpointError(
                f"The file holds {_listed(strangers)}, which belong(s) to no CLIP image encoder. "
                "Remove them or choose another file."
            )
        stored = {name: name for name in prefixed}
    elif any(name in names for name in TEXT_MARKS) or not any(
        name == "conv1.weight" or name.startswith("trunk.") for name in names
    ):
        raise CheckpointError(
            f"The file has no tensors named {PREFIX}…, and its own names ({_listed(names)}) do not say which encoder "
            "they belong to. Files in other forms (Hugging Face, `module.`, adapters) become a zoo by "
            "`python -m engine zoo import`; or save the image encoder with the prefix."
        )
    else:
        stored = {PREFIX + name: name for name in names}
    return Selected(weights, {name: stored[name] for name in canonical_order(stored)})


def _prefixed(weights: Weights, layout: Layout) -> Selected:
    """Select the tensors with a layout's prefix; ids of positions, which some files hold, are no weights."""
    strangers = [name for name in weights.names if not name.startswith((layout.prefix, *layout.beside))]
    if strangers:
        raise CheckpointError(
            f"The file holds {_listed(strangers)}, which belong(s) to no encoder named {layout.prefix}…. Remove them "
            "or choose another file."
        )
    chosen = [n for n in weights.names if n.startswith(layout.prefix) and not n.endswith(layout.derived)]
    return Selected(weights, {name: name for name in canonical_order(chosen)})


def canonical_order(names: Iterable[str]) -> list[str]:
    """Sort names in the order of the network, not of the alphabet: block 2 before block 10, weight before bias."""
    return sorted(names, key=_place)


def check_same_architecture(base: Weights, expert: Weights, expert_name: str, kind: str = "Expert") -> None:
    """Refuse an expert, or another kind of model, whose tensors are not the base's.

    Raises:
        CheckpointError: naming missing or unexpected tensors, or the first shape that differs.
    """
    ours, theirs = set(base.names), set(expert.names)
    for what, names in (("lacks", ours - theirs), ("has, and the base has not,", theirs - ours)):
        if names:
            raise CheckpointError(
                f"{kind} '{expert_name}' {what} {_listed(canonical_order(names))}. "
                "Choose checkpoints of one architecture."
            )
    for name in base.names:
        if base.shape(name) != expert.shape(name):
            raise CheckpointError(
                f"{kind} '{expert_name}' has {name} of shape {expert.shape(name)}; the base has {base.shape(name)}. "
                "Choose checkpoints of one architecture."
            )


def check_finite(weights: Weights, owner: str, progress: Progress | None = None) -> None:
    """Read every tensor once and refuse NaN and infinity.

    Args:
        weights: what to check.
        owner: how an error names it, e.g. ``Expert 'dtd'``.
        progress: told how much is done.

    Raises:
        CheckpointError: naming the first tensor that is not finite and how many of its values are not.
    """
    for index, name in enumerate(weights.names):
        tensor = weights.tensor(name)
        # The sum of finite numbers may overflow, so it only clears a tensor; it never condemns one.
        if tensor.is_floating_point() and not tensor.sum(dtype=torch.float64).isfinite():
            missing, infinite = int(tensor.isnan().sum()), int(tensor.isinf().sum())
            if missing or infinite:
                raise CheckpointError(
                    f"{owner} has {missing:,} NaN and {infinite:,} infinite values of {tensor.numel():,} in {name}. "
                    "Its training diverged or the file is damaged; choose another checkpoint."
                )
        if progress:
            progress((index + 1) / len(weights.names), f"Checking {name}")


def _is_text(name: str) -> bool:
    return name in TEXT_NAMES or name.startswith(TEXT_PREFIXES)


def _listed(names: Iterable[str], most: int = 4) -> str:
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"{name:.100}" for name in names[:most]) + rest


def _place(name: str) -> tuple[object, ...]:
    short = bare(name)
    stage = short.split(".", maxsplit=1)[0]
    rank = _STAGES.index(stage) if stage in _STAGES else len(_STAGES)
    places = []
    for part in short.split("."):
        known = _PARTS.index(part) if part in _PARTS else len(_PARTS)
        places.append((0, int(part), "") if part.isdecimal() else (1, known, part))
    return rank, places
