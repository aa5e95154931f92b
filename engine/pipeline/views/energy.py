"""Energy in low-rank subspaces: what an expert's update reads of its own task's inputs and of the other tasks'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ...errors import RecipeError
from ...layouts import Layout
from ...preparation import Preparation
from ...recipe import Probe, Recipe
from ..sources import Sources
from ..steps import SHARE, NoInputs, StepParams, apart, step
from ..viewing.base import View
from ..viewing.by_task import SampleRequest, need_blocks
from ..viewing.on_weights import merge_only
from ..viewing.opening import Opening, Settings
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from torch import Tensor

    from ...training.low_rank import Adapted
    from ...zoo.folder import Zoo
    from ..run.plan import RunSteps
    from ..tools import StepTools

TARGETS = ("q", "v")


class EnergyRequest(SampleRequest):
    """Request for the energy of tasks' inputs in experts' subspaces."""

    REFUSAL = "The subspaces cannot be measured"

    images: int = Field(60, ge=8, le=2000, title="Images a task", description="At most; drawn from evaluation images.")
    rank: int = Field(
        8, ge=1, le=256, title="Rank", description="Of experts without factors: their vectors' leading directions."
    )


class EnergyParams(StepParams):
    """Parameters of the energies."""

    experts: dict[str, str]  # expert → its task
    data: dict[str, str]  # digest of each task's images
    digests: dict[str, str]  # of base and experts
    factors: dict[str, str]  # digests of the files of factors, of experts that have some
    images: int
    probe: Probe
    rank: int
    architecture: dict[str, Any]
    preprocess: Preparation
    sources: Sources = apart()


def plan(run: RunSteps, asked: EnergyRequest) -> str:
    """Plan the energies of a recipe's experts.

    Raises:
        RecipeError: fewer than two experts' tasks have images, or an encoder without blocks that are known.
    """
    need_blocks(run, "look into")
    experts = {run.expert_of[task.name]: task.name for task in run.in_domain()}
    if len(experts) < 2:
        raise RecipeError("Two experts whose tasks have images are needed. Choose a run with more experts.")
    table = run.zoo.manifest.expert_table
    files = {name: table[name].factors for name in experts}
    params = EnergyParams(
        experts=experts,
        data={task: run.data_digests[task] for task in experts.values()},
        digests=run.digests_of(*experts),
        factors={name: run.store.digest_file(run.zoo.path(file)) for name, file in files.items() if file},
        images=asked.images,
        probe=run.recipe.probe,
        rank=asked.rank,
        architecture=run.config,
        preprocess=run.preprocess,
        sources=run.sources,
    )
    return run.make(energy, params)


@step("energy", label="Looking at matrices' inputs", params=EnergyParams, cost=8.0, gpu=True, threads=SHARE)
def energy(inputs: NoInputs[Path], params: EnergyParams, output: Path, tools: StepTools) -> None:
    """Measure each expert's share of energy on every task's inputs of the base; writes ``energy.json``.

    ``matrices`` are queries' and values' of each block; by expert ``own`` and ``others`` (mean over the other tasks),
    shares by matrix, with ``rank`` and where the directions are from; ``random`` is what a random subspace of the
    expert's rank has. ``images`` of each task: a number, or the numbers that there are where tasks differ.
    """
    import torch

    from ...analysis.energy import energy_share
    from ...training.low_rank import adapted_matrices
    from ...training.osrm import layer_inputs
    from ...zoo.encoders.backbone import load_encoder
    from ..viewing.models import images_of

    zoo = params.sources.open()
    layout = zoo.modality.layout_of(params.architecture)
    encoder = load_encoder(params.architecture, zoo.weights("base"))
    matrices = sorted(adapted_matrices(encoder, TARGETS, layout), key=lambda matrix: matrix.name)
    seen: dict[str, Any] = {}
    used: set[int] = set()
    for place, task in enumerate(params.experts.values()):
        tools.progress(place / len(params.experts), f"inputs on {task}")
        images = images_of(zoo, task, params.probe, params.images)
        used.add(len(images.rows))
        encoder.to(images.device)
        seen[task] = layer_inputs(encoder, matrices, torch.cat(list(images.batches())))
    found = {}
    for name, own in params.experts.items():
        directions, source = _directions(zoo, params, name, matrices, layout)
        shares = {
            task: [energy_share(directions[m.name], seen[task][m.tensor].moment) for m in matrices]
            for task in params.experts.values()
        }
        others = [values for task, values in shares.items() if task != own]
        found[name] = {
            "task": own,
            "from": source,
            "rank": max(len(rows) for rows in directions.values()),
            "own": shares[own],
            "others": [sum(column) / len(column) for column in zip(*others, strict=True)],
            "random": [len(directions[m.name]) / m.shape[1] for m in matrices],
        }
    document = {
        "matrices": [matrix.name for matrix in matrices],
        "experts": found,
        "images": max(used) if len(used) == 1 else sorted(used),
        "split_seed": params.probe.split_seed,
    }
    (output / "energy.json").write_text(json.dumps(document))


def _directions(
    zoo: Zoo, params: EnergyParams, name: str, matrices: list[Adapted], layout: Layout
) -> tuple[dict[str, Tensor], str]:
    """Return orthonormal input directions by matrix: of the expert's factor A, else of its task vector."""
    from ...analysis.energy import input_directions, orthonormal
    from ...training.low_rank import DOWN
    from ...weights import SafetensorsFile

    prefix = layout.prefix
    if name in params.factors:
        file = SafetensorsFile(zoo.path(str(zoo.manifest.expert_table[name].factors)))
        if all(prefix + matrix.name + DOWN in file.names for matrix in matrices):
            return {m.name: orthonormal(file.tensor(prefix + m.name + DOWN)) for m in matrices}, "factors"
    base, expert = zoo.weights("base"), zoo.weights(name)
    found = {}
    for matrix in matrices:
        change = expert.tensor(prefix + matrix.tensor).float() - base.tensor(prefix + matrix.tensor).float()
        found[matrix.name] = input_directions(change[matrix.rows], params.rank)
    return found, "task vector"


def _inputs_only(recipe: Recipe) -> Recipe:
    """Return the recipe without what the energies do not depend on."""
    chosen = merge_only(recipe)
    return chosen.model_copy(update={"transforms": (), "merge": Recipe().merge, "forward": "standard"})


def work(asked: EnergyRequest, sizes: Sizes) -> Work:
    """Return what the base's inputs and the experts' directions take."""
    return Work(passes=2 * sizes.looked_at(asked.images), models=sizes.experts, decomposed=sizes.experts)


def _opened(opening: Opening) -> Settings:
    """Ask for it where there are two experts to compare."""
    report = opening.report
    own = {report.tasks[task].expert for task in report.tasks_of("in")} - {None}
    return [{}] if report.accuracy and len(own) > 1 else []


ENERGY = View(
    "energy",
    "Energy in low-rank subspaces",
    EnergyRequest,
    plan,
    reduced=_inputs_only,
    work=work,
    needs="zoo",
    opens=_opened,
)
