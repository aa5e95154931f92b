"""A text model in a checkpoint: its encoder under canonical names, its classifier, and what is left out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ....errors import CheckpointError
from ....types import Weights
from ....weights.align import Selected, canonical_order
from ...texts.families import Family
from ..sources import Source

BUFFERS = (".position_ids", ".attn.bias", ".attn.masked_bias")  # they follow from the architecture


@dataclass(frozen=True)
class Classifier:
    """The layers of a fine-tuned classifier, as an expert brought them."""

    weight: Tensor  # (classes, inner)
    bias: Tensor  # (classes,)
    dense: Tensor | None = None  # (inner, width)
    offset: Tensor | None = None

    def tensors(self, task: str) -> dict[str, Tensor]:
        """Return the layers as a zoo's file of heads holds them."""
        found = {task: self.weight, f"{task}/bias": self.bias}
        if self.dense is not None and self.offset is not None:
            found |= {f"{task}/dense.weight": self.dense, f"{task}/dense.bias": self.offset}
        return found


@dataclass
class TextModel:
    """A text model found in a checkpoint."""

    encoder: Weights  # canonical names, in canonical order
    classifier: Classifier | None = None
    tied: bool = True  # of T5: whether one table both reads and writes words
    dropped: list[str] = field(default_factory=list)  # what is not taken over, one phrase each


@dataclass(frozen=True)
class FirstRows:
    """Weights of which one table has more rows than wanted: its first ones."""

    weights: Weights
    tables: Mapping[str, int]  # tensor → rows

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names."""
        return self.weights.names

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        shape = self.weights.shape(name)
        return (self.tables[name], *shape[1:]) if name in self.tables else shape

    def dtype(self, name: str) -> torch.dtype:
        """Return the stored dtype of one tensor."""
        return self.weights.dtype(name)

    def tensor(self, name: str) -> Tensor:
        """Read one tensor."""
        found = self.weights.tensor(name)
        return found[: self.tables[name]].clone() if name in self.tables else found


def find_model(source: Source, family: Family) -> TextModel:
    """Find a family's model in a checkpoint; nothing but headers and small layers is read.

    Raises:
        CheckpointError: there is none, or tensors that belong to neither encoder nor classifier.
    """
    names = source.weights.names
    anchors = [name for name in names if name == family.anchor or name.endswith(f".{family.anchor}")]
    if len(anchors) != 1:
        raise CheckpointError(
            f"{source.path.name} holds {'no' if not anchors else len(anchors)} {family.anchor}, which every "
            f"{family.title} has once; it holds {', '.join(f'{name:.60}' for name in names[:3])} …. Choose a "
            f"{family.title} as transformers saves it."
        )
    parts = _sorted_out(names, anchors[0].removesuffix(family.anchor), family)
    stored, own, left = parts.encoder, parts.classifier, parts.left
    if parts.strangers:
        raise CheckpointError(
            f"{source.path.name} holds {', '.join(f'{name:.80}' for name in parts.strangers[:3])}, which belongs to no "
            f"{family.title} encoder and no classifier of one. Choose a model as transformers saves it."
        )
    found = TextModel(source.weights)
    if family.answers:
        found.tied = _tie(source, family, stored, left)
    if left:
        count = sum(math.prod(source.weights.shape(name)) for name in left)
        found.dropped.append(
            f"{len(left)} tensors of other heads, such as {left[0]:.60} ({count / 1e6:.1f} M parameters)"
        )
    found.encoder = Selected(source.weights, {name: stored[name] for name in canonical_order(stored)})
    if family.classifier:
        found.classifier = _classifier(source.weights, own, family, source.path.name)
    return found


@dataclass
class _Parts:
    """Names in a file by what they are of."""

    encoder: dict[str, str] = field(default_factory=dict)  # canonical name → stored name
    classifier: dict[str, str] = field(default_factory=dict)  # bare name → stored name
    left: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)


def _sorted_out(names: Sequence[str], outer: str, family: Family) -> _Parts:
    """Sort names by what they are of; ``outer`` is what stands before the encoder's own."""
    found = _Parts()
    around = outer.removesuffix(family.published) if family.published else outer
    for name in names:
        bare = name.removeprefix(around)
        inner = name.removeprefix(outer) if name.startswith(outer) else ""
        if name.endswith(BUFFERS):
            continue
        if bare.startswith(_heads_of(family)):
            found.classifier[bare] = name
        elif bare.startswith(family.left) or inner.startswith(family.left):
            found.left.append(name)
        elif inner:
            found.encoder[family.layout.prefix + _modern(inner, family)] = name
        else:
            found.strangers.append(name)
    return found


def classifier_of(weights: Weights, names: Mapping[str, str], family: Family, origin: str) -> Classifier | None:
    """Return the classifier among some tensors.

    Args:
        weights: where they are.
        names: name as a complete model has it → name there.
        family: of the model.
        origin: how an error names the file.

    Raises:
        CheckpointError: a layer is missing, not finite, or of a shape that does not fit the others.
    """
    return _classifier(weights, names, family, origin)


def _heads_of(family: Family) -> tuple[str, ...]:
    return tuple(f"{part}." for part in (family.classifier, family.dense) if part) or ("\0",)


def _modern(name: str, family: Family) -> str:
    for old, new in family.renamed.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _tie(source: Source, family: Family, stored: dict[str, str], left: list[str]) -> bool:
    """Leave copies of T5's table out; returns whether its output is one of them.

    Raises:
        CheckpointError: encoder or decoder read words with a table of their own.
    """
    prefix, weights = family.layout.prefix, source.weights
    table = weights.tensor(stored[prefix + family.anchor])
    for name in family.copies:
        if (own := stored.pop(prefix + name, None)) and not torch.equal(weights.tensor(own), table):
            raise CheckpointError(
                f"{source.path.name}: {own} differs from {stored[prefix + family.anchor]}; in a T5 both are one table. "
                "The file is of another architecture, or damaged."
            )
    output = stored.get(prefix + family.output)
    if output is None:
        return True
    if weights.shape(output) == tuple(table.shape) and torch.equal(weights.tensor(output), table):
        del stored[prefix + family.output]
        return True
    return False


def _classifier(weights: Weights, own: Mapping[str, str], family: Family, origin: str) -> Classifier | None:
    if not own:
        return None
    parts: dict[str, Tensor] = {}
    for layer in (family.classifier, family.dense):
        for kind in ("weight", "bias") if layer else ():
            name = own.get(f"{layer}.{kind}")
            if name is None:
                raise CheckpointError(
                    f"{origin} holds {next(iter(own.values())):.80} but no {layer}.{kind}; a {family.title} classifier "
                    "has both. Choose the whole model."
                )
            tensor = weights.tensor(name).float()
            if not tensor.isfinite().all():
                raise CheckpointError(f"{origin}: the classifier's {name:.80} holds values that are not finite.")
            parts[f"{layer}.{kind}"] = tensor
    weight, bias = parts[f"{family.classifier}.weight"], parts[f"{family.classifier}.bias"]
    if weight.ndim != 2 or bias.shape != (len(weight),):
        raise CheckpointError(
            f"{origin}: the classifier has weights {tuple(weight.shape)} and a bias {tuple(bias.shape)}; (classes, "
            "width) and (classes,) are expected."
        )
    if not family.dense:
        return Classifier(weight, bias)
    return Classifier(weight, bias, parts[f"{family.dense}.weight"], parts[f"{family.dense}.bias"])


def check_base(weights: Weights, misfits: list[str], family: Family, config: Mapping[str, Any]) -> None:
    """Refuse a base that its config does not describe.

    Raises:
        CheckpointError: with the first differences.
    """
    if not misfits:
        return
    pooler = any("pooler" in sentence and sentence.startswith("They lack") for sentence in misfits)
    hint = (
        "It was saved without its pooler, which a classifier's features come from; take the checkpoint with it."
        if pooler
        else f"config.json is that of another model ({family.title} of width {family.size(config, 'width')}), or the "
        "file is incomplete."
    )
    raise CheckpointError(f"The base's tensors do not fit its config.json. {' '.join(misfits[:2])} {hint}")
