"""References of methods whose weights depend on the task or the input."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from ...catalog.routing import TwinParams
from ...merging import twin
from ...merging.apply import merge
from ...merging.compressed import separate
from ...merging.masked import MASK, RESCALER, VECTOR, unpack
from ...merging.wemoe import Mixing, ensemble
from ...recipe import MethodCall
from ...types import PerTask, Tensors, Weights
from ...weights import LazyTaskVectors
from ..context import Offline, models, tensors_of
from ..measure import Check, Found
from ..reference import MergingReference, by_name


def merged_by_task(
    method: str, reference: MergingReference, precision: str
) -> tuple[Weights, LazyTaskVectors, PerTask]:
    """Return the base, the task vectors and the merge."""
    base, vectors = reference.vectors(precision)
    merged = merge(base, vectors, [], MethodCall(method=method), Offline(vectors.experts))
    return base, vectors, merged


def emr_vector(reference: MergingReference, name: str, precision: str) -> Found:
    """Return the unified task vector."""
    _, vectors, merged = merged_by_task("emr", reference, precision)
    return Found({layer: merged.parts[VECTOR + layer] for layer in vectors.names}, reference.output(name))


def emr_masks(reference: MergingReference, name: str, precision: str) -> Found:
    """Return the masks of all tasks."""
    _, vectors, merged = merged_by_task("emr", reference, precision)
    got = {
        f"{task.replace('expert', 'task')}/{layer}": unpack(
            merged.parts[f"{MASK}{task}/{layer}"], merged.parts[VECTOR + layer].shape
        )
        for task in merged.tasks
        for layer in vectors.names
    }
    return Found(got, reference.output(name))


def emr_model(reference: MergingReference, name: str, precision: str) -> Found:
    """Return the weights for one task, and all rescalers."""
    base, _, merged = merged_by_task("emr", reference, precision)
    expert = merged.tasks[int(name.removeprefix("emr_task"))]
    got = tensors_of(models(base, merged)[expert])
    rescalers = [merged.parts[RESCALER + task].item() for task in merged.tasks]
    return Found(
        {**got, "rescalers": rescalers}, {**reference.output(name), "rescalers": reference.values(name)["rescalers"]}
    )


def tall_model(reference: MergingReference, name: str, precision: str) -> Found:
    """Return the weights for one task."""
    base, _, merged = merged_by_task("tall", reference, precision)
    return Found(tensors_of(models(base, merged)[merged.tasks[1]]), reference.output(name))


def twin_model(reference: MergingReference, name: str, precision: str) -> Found:
    """Return the weights at given weights of a router."""
    params = reference.entries[name]["params"]
    base, vectors = reference.vectors(precision)
    settings = TwinParams(scaling=0.3, density=params["keep_fraction"])
    parts = separate(vectors, settings, Offline(vectors.experts))
    gates = torch.tensor(params["router_weights"], dtype=vectors.dtype)
    return Found(twin.rebuild(base, parts, Offline(vectors.experts).forward).mix(gates), reference.output(name))


def wemoe_perceptron(reference: MergingReference, name: str, precision: str) -> Found:
    """Return the first block's perceptron of tokens with given gates, whichever axis counts images inside."""
    want, (base, vectors) = reference.output(name), reference.vectors(precision)
    block = "visual.transformer.resblocks.0.mlp."
    inside = [layer for layer in vectors.names if layer.startswith(block)]
    gates = {block + key: gate.to(vectors.dtype) for key, gate in by_name(want, "gate/").items()}
    weights = {layer: base.tensor(layer).to(vectors.dtype) for layer in inside}
    mode = Mixing(weights, {layer: vectors.stack(layer) for layer in inside}, gates)
    images = want["x"].to(vectors.dtype)
    together = len(images) if reference.entries[name]["params"]["batch_reduce"] else 0

    def perceptron(axis: int, weights: Tensors, tokens: Tensor) -> Tensor:
        tokens = functional.linear(
            tokens.movedim(0, axis), weights[block + "c_fc.weight"], weights[block + "c_fc.bias"]
        )
        tokens = functional.gelu(tokens)
        return functional.linear(tokens, weights[block + "c_proj.weight"], weights[block + "c_proj.bias"]).movedim(
            axis, 0
        )

    got = {str(axis): ensemble(mode, partial(perceptron, axis), images, together) for axis in (0, 1)}
    return Found(got, dict.fromkeys(got, want["y"]))


CHECKS: dict[str, Check] = {
    "twin_svd_rank25_weights": twin_model,
    "wemoe_block0_batchreduce0": wemoe_perceptron,
    "wemoe_block0_batchreduce1": wemoe_perceptron,
    "emr_unified": emr_vector,
    "emr_masks": emr_masks,
    "emr_task0": emr_model,
    "emr_task3": emr_model,
    "tall_task1_lam0.4": tall_model,
}
