"""Geometry: norms and angles of task vectors, and what the merge kept of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.numpy import save_file

from ..steps import A, Inputs, NoInputs, step
from ..viewing.base import View, ViewRequest
from ..viewing.on_weights import ModelsParams, merge_only, merged_for, write_names
from ..viewing.opening import at_once
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from ..run.plan import RunSteps
    from ..tools import StepTools

BESIDE = ("geometry.safetensors", "geometry.json")


class GeometryRequest(ViewRequest):
    """Request for the geometry of a recipe's task vectors."""

    REFUSAL = "The weights cannot be measured"


@dataclass(frozen=True)
class KeptInputs(Inputs[A]):
    """The merge and the experts' geometry."""

    merge: A
    geometry: A


def plan(run: RunSteps, asked: GeometryRequest) -> str:
    """Plan the geometry of the experts' task vectors, and the comparison of the merged vector with them."""
    params = ModelsParams.of(run)
    first = run.make(geometry, params)
    return run.make(kept, params, KeptInputs[str](run.merge(run.recipe.seeds[0]), first))


@step("weight_geometry", label="Measuring task vectors", params=ModelsParams)
def geometry(inputs: NoInputs[Path], params: ModelsParams, output: Path, tools: StepTools) -> None:
    """Measure the experts' task vectors; writes ``geometry.safetensors`` and ``geometry.json``."""
    from ...analysis.weights import geometry as measure
    from ...weights import LazyTaskVectors

    base, experts = params.models()
    vectors = LazyTaskVectors(base, experts)
    save_file(measure(base, vectors, tools.progress).arrays(), output / "geometry.safetensors")
    write_names(output, "geometry", vectors.names, vectors.experts)


@step("weight_kept", label="Comparing the merged vector with the experts'", params=ModelsParams, inputs=KeptInputs)
def kept(inputs: KeptInputs[Path], params: ModelsParams, output: Path, tools: StepTools) -> None:
    """Compare the merged vector with the experts'; writes ``kept.*`` and the experts' geometry beside it."""
    import torch

    from ...analysis.weights import kept as compare
    from ...weights import LazyTaskVectors

    base, experts = params.models()
    vectors = LazyTaskVectors(base, experts)
    merged = {expert: merged_for(params, inputs.merge, base, expert) for expert in experts}

    def vector(name: str, expert: str) -> torch.Tensor:
        return merged[expert].tensor(name).float().sub_(base.tensor(name).float())

    save_file(compare(vectors, vector, tools.progress).arrays(), output / "kept.safetensors")
    write_names(output, "kept", vectors.names, vectors.experts)
    for name in BESIDE:
        (output / name).write_bytes((inputs.geometry / name).read_bytes())


def work(asked: GeometryRequest, sizes: Sizes) -> Work:
    """Return what reading all models takes, alone and beside the merged one."""
    return Work(models=2 * (sizes.experts + 1))


GEOMETRY = View(
    "weights", "Weights view", GeometryRequest, plan, "kept", merge_only, work=work, needs="merge", opens=at_once
)
