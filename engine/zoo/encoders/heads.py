"""Frozen heads: zero-shot ones, one unit-norm row a class times a scale, and those of fine-tuned classifiers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import CheckpointError, ZooError
from ...manifest import Manifest, resolve_inside
from ...types import Affine, Weights
from ...weights import Memory, open_weights, write_weights
from .architecture import architecture, width_of

DEFAULT_LOGIT_SCALE = math.log(100.0)
MAX_LOGIT_SCALE = 20.0
HEADS_KEY = "heads"  # in the header of a heads file: how they were made, where not from a text encoder
MADE_OTHERWISE = {
    "prototypes": "class means of the base's features on training samples",
    "probe": "linear probes on the base's features of training images",
    "pretraining": "rows that the base learned with its noisy labels",
    "classifiers": "classifiers of the experts, which stay each expert's own",
}
CLASSIFIERS = "classifiers"
BIAS, DENSE, OFFSET = "/bias", "/dense.weight", "/dense.bias"  # what follows a task's name in a file of classifiers
ACTIVATION = "activation"  # in the header of such a file
ACTIVATIONS = ("tanh", "relu", "")


@dataclass(frozen=True)
class ZeroShotHead:
    """A task's head; with ``affine`` that of a fine-tuned classifier, whose rows have any norm and whose scale is 1."""

    weight: Tensor  # (classes, dim), rows of unit norm
    scale: float  # exp(logit_scale)
    affine: Affine | None = None

    def logits(self, features: Tensor) -> Tensor:
        """Return float64 scores (n, classes) of un-normalised features (n, dim)."""
        if self.affine is not None:
            return self.affine.each(lambda tensor: tensor.double()).logits(features.double(), self.weight.double())
        return self.scale * nn.functional.normalize(features, dim=1).double() @ self.weight.double().T

    def classes(self, features: Tensor) -> Tensor:
        """Return the class with the highest score (n,) of features (n, dim)."""
        if self.affine is not None:
            return self.affine.logits(features, self.weight).argmax(dim=1)
        return (features @ self.weight.T).argmax(dim=1)

    @property
    def reader(self) -> Tensor:
        """Return the matrix (rows, dim) that features meet first."""
        return self.weight if self.affine is None or self.affine.dense is None else self.affine.dense

    def read_by(self, matrix: Tensor) -> ZeroShotHead:
        """Return the head with another matrix in that place."""
        if self.affine is None or self.affine.dense is None:
            return replace(self, weight=matrix)
        return replace(self, affine=replace(self.affine, dense=matrix))

    def reordered(self, order: Tensor | None) -> ZeroShotHead:
        """Return the head for features in another order, new[i] = old[order[i]]."""
        return self if order is None else self.read_by(self.reader.index_select(1, order))

    def to(self, device: torch.device) -> ZeroShotHead:
        """Return the head on a device."""
        return self.each(lambda tensor: tensor.to(device))

    def float(self) -> ZeroShotHead:
        """Return the head in float32."""
        return self.each(lambda tensor: tensor.float())

    def each(self, change: Callable[[Any], Any]) -> ZeroShotHead:
        """Return the head with every tensor changed."""
        return ZeroShotHead(change(self.weight), self.scale, self.affine.each(change) if self.affine else None)

    def arrays(self) -> ZeroShotHead:
        """Return the head with arrays in place of tensors."""
        return self.each(lambda tensor: tensor.numpy())


def read_heads(
    folder: Path, manifest: Manifest, tasks: list[str], built: Path | None = None
) -> tuple[dict[str, ZeroShotHead], list[str]]:
    """Read the heads of the named tasks.

    Args:
        folder: the zoo's folder.
        manifest: its manifest.
        tasks: names of tasks.
        built: a file of heads built from the text encoder, for a zoo that brings none.

    Returns:
        The heads by task, and warnings to show.

    Raises:
        ZooError: the zoo brings no heads, or one does not fit its task.
    """
    if manifest.heads is None and built is None:
        raise ZooError(
            f"The zoo '{manifest.name}' brings no heads (`heads:` in zoo.yaml), so nothing can be classified with it."
        )
    file = open_weights(resolve_inside(folder, manifest.heads) if manifest.heads else built)
    names = {name for name in file.names if "/" not in name}
    if _is_of_classifiers(file):
        return _classifiers(folder, manifest, tasks, file), []
    scale, warnings = _logit_scale(folder, manifest, file)
    if made := _made_otherwise(file):
        warnings.append(f"The heads are {made}, not zero-shot: accuracies of the pretrained model gain from labels.")
    heads, width = {}, width_of(architecture(folder, manifest))
    for task in tasks:
        _refuse_absent(task, names, manifest.heads or built.name)
        heads[task] = ZeroShotHead(_checked(file.tensor(task).float(), task, manifest, width), math.exp(scale))
    return heads, warnings


def are_classifiers(zoo: Path, manifest: Manifest) -> bool:
    """Tell whether a zoo's heads are fine-tuned classifiers, each of one expert."""
    return bool(manifest.heads) and _is_of_classifiers(open_weights(resolve_inside(zoo, manifest.heads)))


def write_reordered(folder: Path, manifest: Manifest, orders: Mapping[str, Tensor], target: Path) -> None:
    """Write a zoo's file of classifiers again, some of them for features in another order.

    Args:
        folder: the zoo's folder.
        manifest: its manifest.
        orders: of features, by task: new[i] = old[order[i]]. Tasks without a head are passed over.
        target: the file to write.
    """
    file = open_weights(resolve_inside(folder, str(manifest.heads)))
    tensors = {name: file.tensor(name) for name in file.names}
    for task, order in orders.items():
        name = task + DENSE if task + DENSE in tensors else task
        if name in tensors:
            tensors[name] = tensors[name].index_select(1, order).contiguous()
    target.parent.mkdir(exist_ok=True)
    write_weights(target, Memory(tensors), metadata=dict(file.metadata))


def heads_in_words(folder: Path, manifest: Manifest, task: str) -> str:
    """Return how the head of a task was made, for people."""
    if not manifest.heads:
        return f"zero-shot, built with {manifest.task_table[task].prompts_label}"
    file = open_weights(resolve_inside(folder, manifest.heads))
    made = _made_otherwise(file)
    if _is_of_classifiers(file):
        return "classifier of the expert, which stays its own"
    return f"{made}, not zero-shot" if made else "zero-shot, brought with the zoo"


def head_of(folder: Path, manifest: Manifest, weight: Tensor) -> ZeroShotHead:
    """Return a head of unit-norm rows (classes, dim) with the base's logit scale."""
    return ZeroShotHead(weight, math.exp(base_logit_scale(folder, manifest)))


def _refuse_absent(task: str, names: set[str], file: str) -> None:
    if task not in names:
        raise ZooError(f"{file} holds no head for the task '{task}'; it holds {', '.join(sorted(names))}.")


def _is_of_classifiers(file: Weights) -> bool:
    return getattr(file, "metadata", {}).get(HEADS_KEY) == CLASSIFIERS


def _classifiers(folder: Path, manifest: Manifest, tasks: list[str], file: Weights) -> dict[str, ZeroShotHead]:
    """Read the heads of fine-tuned classifiers.

    Raises:
        ZooError: a layer is missing, of another shape than features and classes ask for, or not finite.
    """
    activation = str(file.metadata.get(ACTIVATION, ""))
    if activation not in ACTIVATIONS:
        raise ZooError(f"{manifest.heads} names the activation {activation!r:.40}; tanh and relu are known.")
    names, width, heads = set(file.names), width_of(architecture(folder, manifest)), {}
    for task in tasks:
        _refuse_absent(task, {name for name in names if "/" not in name}, str(manifest.heads))
        deep = task + DENSE in names
        classes = len(manifest.task_table[task].classes)
        inner = file.shape(task + DENSE)[0] if deep else width
        shapes = {task: (classes, inner), task + BIAS: (classes,)}
        shapes |= {task + DENSE: (inner, width), task + OFFSET: (inner,)} if deep else {}
        for name, shape in shapes.items():
            if name not in names or file.shape(name) != shape:
                has = f"has shape {file.shape(name)}" if name in names else "is missing"
                raise ZooError(
                    f"{manifest.heads}: {name} {has}; {shape} is expected for {classes} classes and features of "
                    f"{width} dimensions. Choose the classifier of this expert, and list its classes."
                )
        found = {name: file.tensor(name).float() for name in shapes}
        if strange := [name for name, tensor in found.items() if not tensor.isfinite().all()]:
            raise ZooError(f"{manifest.heads}: {strange[0]} holds values that are not finite.")
        affine = Affine(
            found[task + BIAS], found.get(task + DENSE), found.get(task + OFFSET), activation if deep else ""
        )
        heads[task] = ZeroShotHead(found[task], 1.0, affine)
    return heads


def _made_otherwise(file: Weights) -> str:
    """Return how heads were made that are not zero-shot; '' for others."""
    return MADE_OTHERWISE.get(str(getattr(file, "metadata", {}).get(HEADS_KEY)), "")


def _checked(weight: Tensor, task: str, manifest: Manifest, width: int) -> Tensor:
    classes = len(manifest.task_table[task].classes)
    if weight.ndim != 2 or weight.shape[0] != classes:
        raise ZooError(
            f"The head of '{task}' has shape {tuple(weight.shape)}, but the task lists {classes} classes. "
            "Each class needs one row, in the order of `classes`."
        )
    if weight.shape[1] != width:
        raise ZooError(
            f"The head of '{task}' takes features of {weight.shape[1]} dimensions; the backbone makes {width}. "
            "Choose heads of this architecture."
        )
    if not torch.isfinite(weight).all():
        raise ZooError(f"The head of '{task}' holds values that are not finite.")
    norms = weight.norm(dim=1)
    if (norms - 1).abs().max() > 1e-2:
        raise ZooError(
            f"Rows of the head of '{task}' have norms from {norms.min():.3g} to {norms.max():.3g}; "
            "each must have unit norm."
        )
    return torch.nn.functional.normalize(weight, dim=1)


def base_logit_scale(folder: Path, manifest: Manifest) -> float:
    """Return the base's own logit scale (a logarithm), else ln 100."""
    return _base_scale(folder, manifest)[0]


def starting_logit_scale(folder: Path, manifest: Manifest) -> float:
    """Return the logarithm that heads for other tasks start with: the base's own, else that of the zoo's heads."""
    scale, guessed = _base_scale(folder, manifest)
    if not guessed or not manifest.heads:
        return scale
    heads = open_weights(resolve_inside(folder, manifest.heads))
    return _scalar(heads, manifest.heads) if "logit_scale" in heads.names else scale


def _logit_scale(folder: Path, manifest: Manifest, heads: object) -> tuple[float, list[str]]:
    """Return the heads' own logit scale, else the base's, else ln 100 with a warning."""
    if "logit_scale" in heads.names:
        return _scalar(heads, manifest.heads or "heads"), []
    return _base_scale(folder, manifest)


def _base_scale(folder: Path, manifest: Manifest) -> tuple[float, list[str]]:
    try:
        base = open_weights(resolve_inside(folder, manifest.backbone.weights))
        if "logit_scale" in base.names:
            return _scalar(base, manifest.backbone.weights), []
    except CheckpointError:
        pass
    return DEFAULT_LOGIT_SCALE, ["Neither the heads nor the base hold a logit_scale; ln 100 is used."]


def _scalar(file: Weights, name: str) -> float:
    """Return the logit scale in a file.

    Raises:
        ZooError: it is no single number that a softmax could use.
    """
    shape = file.shape("logit_scale")
    value = float(file.tensor("logit_scale")) if math.prod(shape) == 1 else math.nan
    if not abs(value) <= MAX_LOGIT_SCALE:
        raise ZooError(
            f"logit_scale in {name} has shape {shape} and value {value:.3g}; one number is needed, the logarithm of "
            f"the scale (ln 100 = 4.6 for CLIP), between -{MAX_LOGIT_SCALE:g} and {MAX_LOGIT_SCALE:g}."
        )
    return value
