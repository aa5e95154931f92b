"""Connection of two models: the loss on the path before and after their units are matched, and which ones match."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from ...catalog import ALIGNMENTS, params_of, row_of
from ...errors import RecipeError, nearest
from ...preparation import Preparation
from ...recipe import Probe, Recipe
from ..run.linearised import refuse_inside
from ..sources import Sources
from ..steps import INLINED, SHARE, A, Inputs, NoInputs, StepParams, apart, step
from ..viewing.base import View, read_document
from ..viewing.by_task import SampleRequest, judged, need_blocks
from ..viewing.on_weights import PRETRAINED, merge_only
from ..viewing.opening import of_pair
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from ..run.plan import RunSteps
    from ..tools import StepTools

ALIGNED, SHUFFLED, UNITS = "aligned.safetensors", "end.safetensors", "units.json"
SEEN = 64  # images on which units are correlated


class ConnectionRequest(SampleRequest):
    """Request for the connection of two models."""

    REFUSAL = "The connection cannot be measured"

    start: str = Field("", title="Start", description="An expert, or `pretrained`; the recipe's first by default.")
    end: str = Field("", title="End", description="Another; its units are reordered.")
    method: str = Field("weight_matching", title="Matching", description="A row of the catalogue's alignments.")
    params: dict[str, Any] = Field(default_factory=dict, title="Parameters", description="Of the matching.")
    shuffle: bool = Field(True, title="Shuffle first", description="The end's units, in a way that keeps its function.")
    seed: int = Field(0, ge=0, title="Seed", description="Of the shuffle.")
    points: int = Field(7, ge=3, le=101, title="Points", description="Models on the path, both ends included.")
    images: int = Field(60, ge=8, le=2000, title="Images a task", description="At most; drawn from evaluation images.")

    @model_validator(mode="after")
    def _known(self) -> ConnectionRequest:
        try:
            params_of(row_of(ALIGNMENTS, self.method, "way to align"), dict(self.params))
        except RecipeError as error:
            raise ValueError(str(error)) from error
        if self.start and self.start == self.end:
            raise ValueError(f"both ends are '{self.start}'; choose two models")
        return self


class UnitsParams(StepParams):
    """Parameters of the matching."""

    start: str
    end: str
    task: str  # whose images a matching looks at
    data: str  # digest of them
    digests: dict[str, str]
    method: str
    params: dict[str, Any]
    shuffle: bool
    seed: int
    architecture: dict[str, Any]
    preprocess: Preparation
    streamed: Literal[True] | None = None  # where features move with the units
    sources: Sources = apart()


class ConnectionParams(StepParams):
    """Parameters of the path on one task."""

    start: str
    task: str
    data: str  # digest of the task's images
    probe: Probe
    images: int
    heads: str  # digest
    digests: dict[str, str]
    alphas: tuple[float, ...]
    architecture: dict[str, Any]
    preprocess: Preparation
    sources: Sources = apart()


@dataclass(frozen=True)
class ConnectionInputs(Inputs[A]):
    """The matched end of the path."""

    units: A
    heads: A | None = None  # where they are built


class ConnectedParams(StepParams):
    """Parameters of the step that puts tasks together."""

    start: str
    end: str
    method: str
    shuffle: bool
    seed: int
    alphas: tuple[float, ...]
    tasks: tuple[str, ...]
    split_seed: int


@dataclass(frozen=True)
class ConnectedInputs(Inputs[A]):
    """The matching, and the paths by task."""

    units: A
    tasks: Mapping[str, A] = field(default_factory=dict, metadata=INLINED)


def plan(run: RunSteps, asked: ConnectionRequest) -> str:
    """Plan the matching of two models and the path between them.

    Raises:
        RecipeError: a model that the recipe does not have or that runs evaluate linearised, nothing to score, or an
            encoder without blocks.
    """
    table, tasks = run.zoo.manifest.expert_table, judged(run)
    need_blocks(run, "match units of")
    known = [*(name for name, _ in run.experts), PRETRAINED]
    start = asked.start or next(name for name in known if name != asked.end)
    end = asked.end or next(name for name in known if name != start)
    for name in (start, end):
        if name not in known:
            raise RecipeError(f"The recipe has no model '{name}'. {nearest(name, known)}")
    refuse_inside([name for name in (start, end) if run.linearised(name)])
    digests = run.digests_of(*(name for name in (start, end) if name != PRETRAINED))
    own = [table[name].task for name in (end, start) if name != PRETRAINED and table[name].task in tasks]
    looked = own[0] if own else tasks[0]
    row = row_of(ALIGNMENTS, asked.method, "way to align")
    shared = {"digests": digests, "architecture": run.config, "preprocess": run.preprocess, "sources": run.sources}
    matched = run.make(
        match_units,
        UnitsParams(
            start=start,
            end=end,
            task=looked,
            data=run.data_digests[looked],
            method=asked.method,
            params=params_of(row, dict(asked.params)).model_dump(mode="json"),
            shuffle=asked.shuffle,
            seed=asked.seed,
            streamed=run.zoo.modality.layout_of(run.config).streamed or None,
            **shared,
        ),
        label=f"Matching {end} with {start}",
    )
    alphas = tuple(place / (asked.points - 1) for place in range(asked.points))
    paths = {}
    for task in dict.fromkeys(own or tasks):
        params = ConnectionParams(
            start=start,
            task=task,
            data=run.data_digests[task],
            probe=run.recipe.probe,
            images=asked.images,
            heads=run.digests["heads"],
            alphas=alphas,
            **shared,
        )
        inputs = ConnectionInputs[str](matched, run.heads())
        paths[task] = run.make(connection_path, params, inputs, f"From {start} to {end} on {task}")
    together = ConnectedParams(
        start=start,
        end=end,
        method=asked.method,
        shuffle=asked.shuffle,
        seed=asked.seed,
        alphas=alphas,
        tasks=tuple(paths),
        split_seed=run.recipe.probe.split_seed,
    )
    return run.make(connection, together, ConnectedInputs[str](matched, paths))


@step("match_units", label="Matching units", params=UnitsParams, cost=6.0, threads=SHARE)
def match_units(inputs: NoInputs[Path], params: UnitsParams, output: Path, tools: StepTools) -> None:
    """Match the units of one model with another's; writes both forms of the end, and ``units.json``.

    By group: ``moved`` (share of units out of place before the matching, where they were shuffled), ``found`` (share
    put back; without a shuffle, share left in place), ``before`` and ``after`` (mean cosine between units in the same
    place). By block ``zips``: the kinds of groups that ZipIt makes of both models' hidden units. Where features
    move with the units, ``features``: in which order each form of the end gives them, by its file.
    """
    import torch

    from ...alignment.methods import check_same_function, reordered, symmetry_for
    from ...alignment.observing import transformer_units
    from ...alignment.symmetry import identity, random_permutations
    from ...alignment.transformer import unfolded
    from ...alignment.units import in_place, likeness, undone, zip_shares
    from ...weights import Memory, write_weights
    from ...zoo.encoders.backbone import load_encoder, prefix_of
    from ..viewing.on_weights import model_of
    from ..zoos.align import images_for

    zoo, row = params.sources.open(), row_of(ALIGNMENTS, params.method, "way to align")
    settings = params_of(row, dict(params.params))
    one, two = (
        load_encoder(params.architecture, model_of(zoo, name, None)).double() for name in (params.start, params.end)
    )
    whole = symmetry_for(params.architecture, settings)
    images = images_for(zoo, params.task)
    first = {name: tensor.detach() for name, tensor in one.named_parameters()}
    own = {name: tensor.detach().clone() for name, tensor in two.named_parameters()}
    mixed = identity(whole, unfolded(own))
    if params.shuffle:
        mixed = random_permutations(whole, unfolded(own), params.seed)
    start, given = reordered(own, whole, mixed), whole.order_of_features(mixed)
    images = replace(images, order=given)
    two.load_state_dict({**two.state_dict(), **start})
    tools.progress(0.1, row.title)
    orders = row.load()(one, two, whole, settings, images)
    aligned = reordered(start, whole, orders)
    tools.progress(0.6, "the same function")
    some, found = images(8), whole.order_of_features(orders)
    features = {SHUFFLED: given, ALIGNED: given if given is None or found is None else given[found]}
    apart_by = max(
        check_same_function(two, own, tensors, some, features[name])
        for name, tensors in ((SHUFFLED, start), (ALIGNED, aligned))
    )
    zips = {}
    seen = [
        tuple(transformer_units(model, part, images.layout) for model in (one, two)) for part in images(SEEN).split(16)
    ]
    blocks = [group for group in seen[0][0] if group.startswith("units_")]
    for place, group in enumerate(blocks):
        tools.progress(0.6 + 0.4 * place / len(blocks), f"zipping {group}")
        zips[group] = asdict(zip_shares((a[group], b[group]) for a, b in seen))
    document = {
        "moved": {group: 1 - in_place(order) for group, order in mixed.items()},
        "found": undone(orders, mixed),
        "before": likeness(unfolded(first), unfolded(start), whole),
        "after": likeness(unfolded(first), unfolded(aligned), whole),
        "zips": zips,
        "zip_images": min(SEEN, sum(len(next(iter(a.values()))) for a, _ in seen)),
        "apart": apart_by,
    }
    if given is not None:
        document["features"] = {name: order.tolist() for name, order in features.items()}
    for name, tensors in ((SHUFFLED, start), (ALIGNED, aligned)):
        kept = {
            prefix_of(params.architecture) + key: torch.as_tensor(tensor).float().contiguous()
            for key, tensor in tensors.items()
        }
        write_weights(output / name, Memory(kept))
    (output / UNITS).write_text(json.dumps(document))


@step(
    "connection_path",
    label="Following a path",
    params=ConnectionParams,
    inputs=ConnectionInputs,
    cost=6.0,
    gpu=True,
    threads=SHARE,
)
def connection_path(inputs: ConnectionInputs[Path], params: ConnectionParams, output: Path, tools: StepTools) -> None:
    """Measure accuracy and loss along three paths; writes ``connection_path.json``.

    ``plain``: to the end as it is; ``aligned``: to the end with its units matched; ``repaired``: the latter, with the
    hidden units' mean and deviation interpolated between the ends (REPAIR), on unlabelled images of other splits. Where
    the end gives its features in another order, the head is a part of it, and lies on the path too.
    """
    import torch

    from ...alignment.methods import cast
    from ...alignment.repair import goals, repair, unit_statistics
    from ...alignment.transformer import matrix_names
    from ...analysis.interpolation import Between, accuracy_and_loss, barrier
    from ...weights import open_weights
    from ...zoo.encoders.backbone import load_encoder
    from ..viewing.models import pictures_of
    from ..viewing.on_weights import model_of
    from ..zoos.align import images_for

    zoo, alphas = params.sources.open(), params.alphas
    pictures = pictures_of(zoo, params.task, params.probe, params.images)
    start = model_of(zoo, params.start, None)
    files = {"plain": SHUFFLED, "aligned": ALIGNED}
    ends = {name: open_weights(inputs.units / file) for name, file in files.items()}
    moved = read_document(inputs.units, "units").get("features", {})
    heads = {
        name: pictures.head.reordered(torch.tensor(moved[file]) if file in moved else None)
        for name, file in files.items()
    }
    others = cast(images_for(zoo, params.task)(SEEN), torch.float32).to(pictures.device)
    labels = torch.as_tensor(pictures.labels).long()

    def measured(encoder: torch.nn.Module, end: str, alpha: float) -> tuple[float, float]:
        with torch.no_grad():
            features = torch.cat([encoder(batch).cpu() for batch in pictures.batches()])
        head = pictures.head.read_by(torch.lerp(pictures.head.reader, heads[end].reader, alpha))
        return accuracy_and_loss(features, head, labels)

    def at(end: Any, alpha: float) -> torch.nn.Module:
        return load_encoder(params.architecture, Between(start, end, alpha)).to(pictures.device)

    layout, shape = zoo.modality.layout_of(params.architecture), zoo.modality.shape(params.architecture)
    layers = matrix_names(layout, "fc", shape["blocks"])
    sides = [unit_statistics(at(ends["aligned"], alpha), layers, others) for alpha in (0.0, 1.0)]
    values: dict[str, list[tuple[float, float]]] = {name: [] for name in ("plain", "aligned", "repaired")}
    ratios: dict[str, float] = {}
    for place, alpha in enumerate(alphas):
        tools.progress(place / len(alphas), f"{params.task}, model {place + 1} of {len(alphas)}")
        for name, end in ends.items():
            values[name].append(measured(at(end, alpha), name, alpha))
        encoder = at(ends["aligned"], alpha)
        if 0 < alpha < 1:
            off = repair(encoder, goals(*sides, alpha), others)
            if abs(alpha - 0.5) < 1e-9:
                ratios = {name: float(ratio.median()) for name, ratio in off.items()}
        values["repaired"].append(measured(encoder, "aligned", alpha))
    document: dict[str, Any] = {}
    for name, found in values.items():
        accuracy, loss = (list(column) for column in zip(*found, strict=True))
        document[name] = {"accuracy": accuracy, "loss": loss, "barrier": barrier(alphas, loss)}
    document |= {"deviation": ratios, "images": len(labels), "available": pictures.available}
    (output / "connection_path.json").write_text(json.dumps(document))


@step("connection", label="Putting the paths together", params=ConnectedParams, inputs=ConnectedInputs, cost=0.1)
def connection(inputs: ConnectedInputs[Path], params: ConnectedParams, output: Path, tools: StepTools) -> None:
    """Put matching and paths together; writes ``connection.json``."""
    document = params.model_dump(mode="json", exclude={"tasks"})
    document["units"] = json.loads((inputs.units / UNITS).read_text("utf-8"))
    document["tasks"] = {task: read_document(inputs.tasks[task], "connection_path") for task in params.tasks}
    (output / "connection.json").write_text(json.dumps(document))


def _two_models(recipe: Recipe) -> Recipe:
    """Return the recipe without what the connection does not depend on."""
    chosen = merge_only(recipe)
    return chosen.model_copy(update={"transforms": (), "merge": Recipe().merge, "forward": "standard"})


def work(asked: ConnectionRequest, sizes: Sizes) -> Work:
    """Return what the models on three paths take on both ends' images, and the matching."""
    return Work(passes=3 * asked.points * 2 * asked.images + 20 * SEEN, models=4, decomposed=2)


CONNECTION = View(
    "connection",
    "Connection of two models",
    ConnectionRequest,
    plan,
    reduced=_two_models,
    work=work,
    needs="zoo",
    unaligned=True,
    opens=of_pair("start", "end"),
)
