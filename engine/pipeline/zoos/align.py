"""Aligning experts that start from another base, so that they can be merged with a zoo's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...alignment.methods import Images, Labelled, cast, check_same_function, reordered, symmetry_for
from ...alignment.symmetry import check_same_shapes
from ...alignment.weight_matching import objective
from ...catalog import ALIGNMENTS, params_of, row_of
from ...errors import ZooError, nearest
from ...manifest import Expert, Manifest
from ...training.setting import spread
from ...weights import Memory, encoder_part, open_weights, write_weights
from ...zoo.encoders.backbone import architecture, load_encoder, preprocessing, to_tensor
from ...zoo.encoders.heads import are_classifiers, write_reordered
from ...zoo.folder import Zoo
from ...zoo.making.adopt import change_experts

CHECKED = 8  # images that the function is compared on
LABELLED = ("val", "train")  # and labelled ones
SPLITS = ("adapt", "train", "test")  # where unlabelled images are taken from, the first there is


def align_experts(
    zoo: str,
    method: str,
    params: Mapping[str, Any],
    names: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
    called: str = "",
) -> dict[str, dict[str, Any]]:
    """Reorder the units of experts so that they agree with the zoo's base; what each computes stays the same.

    The aligned weights are written beside the others, and the manifest names them. Where features are the residual
    stream itself, its order moves them, and a classifier that is the expert's own is reordered with it; a head that
    others read too stays as it is, and so does the order of the stream.

    Args:
        zoo: name or folder.
        method: a row of the catalogue's alignments.
        params: of the method.
        names: experts; by default all whose manifest entry names another base and that are not aligned.
        say: told what has been done.
        called: list each as TASK-CALLED beside the expert as it is, which stays; by default its entry changes.

    Returns:
        For each expert the inner product with the base before and after, the share of units that moved, by group, and
        by how much its features differ (relative, float64).

    Raises:
        EngineError: an unknown method, expert or parameter, no expert that needs it, a name that is taken, weights of
            other widths, or a function that would change.
    """
    opened, row = Zoo.open(zoo), row_of(ALIGNMENTS, method, "way to align")
    settings = params_of(row, dict(params))
    found, changes, read = {}, {}, {}
    chosen = _chosen(opened, names)
    copies = _copies(opened, chosen, called) if called else {}
    for expert in chosen:
        own_head = not called and _reads_alone(opened, expert)
        record, tensors, order = _aligned(opened, expert, row.load(), settings, own_head)
        if order is not None:
            read |= dict.fromkeys(_reading(opened.manifest, expert.task), order)
        target = f"aligned/{copies.get(expert.name, expert.name)}.safetensors"
        path = opened.folder / target
        path.parent.mkdir(exist_ok=True)
        write_weights(path, Memory(tensors), metadata={"task": expert.task, "aligned_by": method})
        found[expert.name], changes[expert.name] = record, {"weights": target, "aligned": method}
        if called:
            changes[expert.name]["method"] = called
        moved = ", ".join(f"{group} {share:.0%}" for group, share in record["moved"].items() if share)
        say(
            f"{expert.name}: inner product with the base {record['before']:.4g} → {record['after']:.4g}; "
            f"moved {moved or 'nothing'}{'' if order is None else ', and the classifier with the residual stream'}"
        )
    change_experts(opened.folder, changes, copies, heads=_reordered_heads(opened, read) if read else "")
    return found


def _reading(manifest: Manifest, task: str) -> list[str]:
    """Return the tasks whose heads read the features of a task's expert: its own, and those shifted from it."""
    return [other.name for other in manifest.tasks if task in (other.name, other.shifted_from)]


def _reads_alone(zoo: Zoo, expert: Expert) -> bool:
    """Tell whether the head of an expert's task is its own classifier, which no other model of the zoo reads with."""
    manifest = zoo.manifest
    tasks = _reading(manifest, expert.task)
    alone = [other.name for other in manifest.experts if other.task in tasks] == [expert.name]
    return alone and not manifest.references and are_classifiers(zoo.folder, manifest)


def _reordered_heads(zoo: Zoo, orders: Mapping[str, Tensor]) -> str:
    """Write the zoo's heads with some for other orders of features; returns the file as the manifest names it.

    The file's name tells the orders, so that one which the manifest names already is never written over.
    """
    told = json.dumps([zoo.manifest.heads, {task: order.tolist() for task, order in orders.items()}])
    target = f"aligned/heads-{hashlib.sha256(told.encode()).hexdigest()[:8]}.safetensors"
    write_reordered(zoo.folder, zoo.manifest, orders, zoo.folder / target)
    return target


def _copies(zoo: Zoo, chosen: Sequence[Expert], called: str) -> dict[str, str]:
    """Return what aligned copies are called, by the name of the expert that stays."""
    found = {expert.name: f"{expert.task}-{called}" for expert in chosen}
    if twice := next((name for name in found.values() if list(found.values()).count(name) > 1), None):
        raise ZooError(
            f"Two experts would be called '{twice}'. Align them one by one (--expert), each --called its own."
        )
    if taken := next((name for name in found.values() if name in zoo.manifest.expert_table), None):
        raise ZooError(f"The zoo has an expert '{taken}' already. Give another name with --called.")
    return found


def _chosen(zoo: Zoo, names: Sequence[str]) -> list[Expert]:
    table = zoo.manifest.expert_table
    for name in names:
        if name not in table:
            raise ZooError(f"The zoo '{zoo.manifest.name}' has no expert '{name}'. {nearest(name, table)}")
        if not table[name].base:
            raise ZooError(
                f"Expert '{name}' names no base of its own, so it starts from the zoo's and its units are in place. "
                "Add `base: FILE` to it in zoo.yaml where that is not so."
            )
    chosen = [table[name] for name in names] or [e for e in table.values() if e.base and not e.aligned]
    if not chosen:
        raise ZooError(
            f"No expert of the zoo '{zoo.manifest.name}' starts from another base, so there is nothing to align. An "
            "expert that does names it in zoo.yaml (`base: FILE`)."
        )
    return chosen


def _aligned(
    zoo: Zoo, expert: Expert, match: Callable[..., dict[str, Tensor]], params: Any, own_head: bool
) -> tuple[dict[str, Any], dict[str, Tensor], Tensor | None]:
    """Align one expert; returns what was found, the tensors to write, and the order of features where it changes.

    Features keep their order unless the expert has a head of its own to move along.
    """
    config = architecture(zoo.folder, zoo.manifest)
    stored = encoder_part(open_weights(zoo.path(expert.base)))
    models = {"base": zoo.weights("base"), "theirs": stored, "expert": zoo.weights(expert.name)}
    shapes = [{name: torch.empty(w.shape(name), device="meta") for name in w.names} for w in models.values()]
    for other in shapes[1:]:
        check_same_shapes(shapes[0], other)
    base, theirs, own = (load_encoder(config, weights).double() for weights in models.values())
    images, data = images_for(zoo, expert.task), zoo.data.get(expert.task)
    symmetry = symmetry_for(config, params) if own_head else symmetry_for(config, params).within
    orders = match(base, theirs if params.by == "base" else own, symmetry, params, images)
    before = dict(own.named_parameters())
    after = reordered(before, symmetry, orders)
    order, samples = symmetry.order_of_features(orders), images(CHECKED) if data is not None else _blank(zoo, config)
    apart = check_same_function(own, before, after, samples, order)
    fixed = _detached(base)
    record = {
        "before": objective(fixed, _detached(own)),
        "after": objective(fixed, {name: tensor.detach() for name, tensor in after.items()}),
        "moved": {group: float((order != torch.arange(len(order))).double().mean()) for group, order in orders.items()},
        "apart": apart,
    }
    prefix = zoo.modality.layout_of(config).prefix
    tensors = {prefix + name: tensor.detach().float().contiguous() for name, tensor in after.items()}
    moves = order is not None and not torch.equal(order, torch.arange(len(order)))
    return record, tensors, order if moves else None


def images_for(zoo: Zoo, task: str) -> Images:
    """Return the images of a task that a matching may look at, in float64; test images only where there are no others.

    Raises:
        ZooError: when they are asked for, where the task has none.
    """
    data, preprocess = zoo.data.get(task), preprocessing(zoo.folder, zoo.manifest)

    def some(splits: Sequence[str], count: int) -> tuple[str, Any]:
        split = None if data is None else next((name for name in splits if data.has(name)), None)
        if data is None or split is None:
            raise ZooError(
                f"Aligning by this method needs {' or '.join(splits)} images of '{task}'. Add them to that task's data "
                "in zoo.yaml, or match by weights."
            )
        rows = data.usable(split)
        return split, rows[spread(count, len(rows))]

    def unlabelled(count: int) -> Tensor:
        split, rows = some(SPLITS, count)
        return cast(to_tensor(zoo.data[task].samples(split, rows), preprocess), torch.float64)

    def labelled(count: int) -> Labelled:
        split, rows = some(LABELLED, count)
        head = zoo.heads([task])[0][task]
        samples = cast(to_tensor(zoo.data[task].samples(split, rows), preprocess), torch.float64)
        labels = torch.as_tensor(zoo.data[task].labels(split)[rows]).long()
        return Labelled(samples, labels, head)

    return Images(unlabelled, labelled, zoo.modality.layout_of(architecture(zoo.folder, zoo.manifest)))


def _blank(zoo: Zoo, config: Mapping[str, Any]) -> Tensor:
    """Return samples that hold nothing, with noise on them where they are numbers."""
    samples = to_tensor(*zoo.modality.blank(config, CHECKED))
    generator = torch.Generator().manual_seed(0)
    return torch.randn(samples.shape, generator=generator) if samples.is_floating_point() else samples


def _detached(encoder: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in encoder.named_parameters()}
