"""Spectra: singular values of task vectors and of the merged one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.numpy import save_file

from ...errors import MergeError
from ..steps import step
from ..viewing.base import View, ViewRequest
from ..viewing.on_weights import MERGED, MergeInput, ModelsParams, kind_of, merge_only, merged_for, write_names
from ..viewing.opening import at_once
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from ..run.plan import RunSteps
    from ..tools import StepTools


class SpectraRequest(ViewRequest):
    """Request for the spectra of a recipe's task vectors."""

    REFUSAL = "The weights cannot be measured"


def plan(run: RunSteps, asked: SpectraRequest) -> str:
    """Plan the singular values of the experts' task vectors and of the merged one."""
    return run.make(spectra, ModelsParams.of(run), MergeInput[str](run.merge(run.recipe.seeds[0])))


@step("weight_spectra", label="Singular values of task vectors", params=ModelsParams, inputs=MergeInput, cost=3.0)
def spectra(inputs: MergeInput[Path], params: ModelsParams, output: Path, tools: StepTools) -> None:
    """Measure the singular values of every matrix of every expert's task vector, and of the merged one: ``spectra.*``.

    An array is called ``MODEL/LAYER``; a merge with weights of its own for each task has no merged spectrum.
    """
    from ...analysis.weights import singular_values
    from ...weights import LazyTaskVectors

    base, experts = params.models()
    vectors = LazyTaskVectors(base, experts)
    static = kind_of(inputs.merge) == "static"
    merged = merged_for(params, inputs.merge, base, next(iter(experts))) if static else None
    matrices = [name for name in vectors.names if len(vectors.shape(name)) == 2]
    models = [*experts, *([MERGED] if merged else [])]
    arrays = {}
    for number, (name, model) in enumerate((name, model) for name in matrices for model in models):
        tools.progress(number / (len(matrices) * len(models)), f"Spectrum of {name}")
        if model == MERGED:
            matrix = merged.tensor(name).float().sub_(base.tensor(name).float())
        else:
            matrix = vectors.vector(name, model)
        arrays[f"{model}/{name}"] = singular_values(matrix)
    if not arrays:
        raise MergeError("The zoo's models have no matrices, so there are no spectra.")
    save_file(arrays, output / "spectra.safetensors")
    write_names(output, "spectra", matrices, models)


def work(asked: SpectraRequest, sizes: Sizes) -> Work:
    """Return what the singular values of all task matrices take."""
    return Work(models=sizes.experts + 1, decomposed=sizes.experts + 1)


SPECTRA = View(
    "spectra",
    "Spectra of task vectors",
    SpectraRequest,
    plan,
    reduced=merge_only,
    work=work,
    needs="merge",
    opens=at_once,
)
