"""Aligning experts that start from another base, so that they can be merged with a zoo's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...alignment.methods import Images, Labelled, cast, check_same_function, reordered, symmetry_for
from ...alignment.symmetry import check_same_shapes
from ...alignment.weight_matching import objective
from ...catalog import ALIGNMENTS, params_of
from ...manifest import Expert, Manifest, read_manifest
from ...preparation import Preparation
from ...store.files import alone
from ...training.setting import spread
from ...types import Progress, Weights
from ...weights import Memory, encoder_part, open_weights, write_weights
from ...zoo.encoders.backbone import architecture, load_encoder, preprocessing, to_tensor
from ...zoo.encoders.heads import are_classifiers, write_reordered
from ...zoo.folder import Zoo
from ...zoo.making.adopt import EXPERT, put_aligned
from ..graph import Plan
from ..sources import Sources
from ..steps import A, Inputs, Step, StepParams, apart, step
from .aligning import LABELLED, SPLITS, AlignRequest, experts_to_align, split_of
from .finetune import plan_heads

if TYPE_CHECKING:
    from ...store import Store
    from ..tools import StepTools

CHECKED = 8  # images that the function is compared on
RECORD, DOCUMENT = "record.json", "aligned.json"


class AlignParams(StepParams):
    """Parameters of the alignment of one expert."""

    task: str
    base: str  # digest of the zoo's base
    theirs: str  # of the expert's own
    weights: str  # of the expert
    data: str | None  # of the task's images, where there are some
    heads: str | None  # where the method scores
    architecture: dict[str, Any]
    preprocess: Preparation
    method: str
    params: dict[str, Any]
    own_head: bool  # whether a head moves along with the features, where these are the residual stream
    expert: str = apart("")  # its name
    sources: Sources = apart()


@dataclass(frozen=True)
class AlignInputs(Inputs[A]):
    """Inputs of the alignment of one expert."""

    heads: A | None = None  # where they are built


class PutParams(StepParams):
    """Parameters of putting aligned experts into their zoo, whose own folder changes."""

    folder: str
    stamp: tuple[int, int]  # of the manifest: file and time
    listed: dict[str, str]  # expert → the name that its aligned form is listed by
    method: str
    called: str = ""
    sources: Sources = apart()


@dataclass(frozen=True)
class PutInputs(Inputs[A]):
    """Aligned experts by name."""

    expert: Mapping[str, A] = field(default_factory=dict)


def plan_align(asked: AlignRequest, store: Store) -> Plan:
    """Plan the alignment of experts: one step for each, and one that puts them into the zoo's folder.

    Raises:
        EngineError: what :func:`.aligning.experts_to_align` refuses, weights that are missing or of other widths, or an
            encoder whose units have no known symmetry.
    """
    zoo = Zoo.open(asked.zoo)
    listed, table = experts_to_align(zoo, asked), zoo.manifest.expert_table
    heads = plan_heads(zoo, store) if "heads" in asked.row.needs else None
    steps = {name: _plan_one(zoo, table[name], asked, store, heads) for name in listed}
    stamp = (zoo.folder / "zoo.yaml").stat()
    params = PutParams(
        folder=str(zoo.folder),
        stamp=(stamp.st_ino, stamp.st_mtime_ns),
        listed=listed,
        method=asked.method,
        called=asked.called,
        sources=Sources(zoo=str(zoo.folder)),
    )
    put = put_into_zoo.plan(params, PutInputs[str]({name: node.key for name, node in steps.items()}))
    return Plan((*([heads] if heads else []), *steps.values(), put), put.key)


def _plan_one(zoo: Zoo, expert: Expert, asked: AlignRequest, store: Store, heads: Step | None) -> Step:
    """Plan the alignment of one expert, whose weights, and those of both bases, have the same names and widths."""
    shapes = [{name: torch.empty(w.shape(name), device="meta") for name in w.names} for w in _models(zoo, expert)]
    for other in shapes[1:]:
        check_same_shapes(shapes[0], other)
    config, settings = architecture(zoo.folder, zoo.manifest), params_of(asked.row, dict(asked.params))
    symmetry_for(config, settings)
    brought = zoo.manifest.heads if "heads" in asked.row.needs else None
    params = AlignParams(
        task=expert.task,
        base=store.digest_file(zoo.weights_path("base")),
        theirs=store.digest_file(zoo.path(str(expert.base))),
        weights=store.digest_file(zoo.weights_path(expert.name)),
        data=zoo.data[expert.task].identity(store.digest_file) if expert.task in zoo.data else None,
        heads=heads.key if heads else store.digest_file(zoo.path(brought)) if brought else None,
        architecture=config,
        preprocess=preprocessing(zoo.folder, zoo.manifest),
        method=asked.method,
        params=settings.model_dump(mode="json"),
        own_head=not asked.called and _reads_alone(zoo, expert),
        expert=expert.name,
        sources=Sources(zoo=str(zoo.folder), heads=str(store.folder_of(heads.key)) if heads else ""),
    )
    return align_expert.plan(params, AlignInputs[str](heads.key if heads else None), label=f"Aligning {expert.name}")


@step("align_expert", label="Aligning an expert", params=AlignParams, inputs=AlignInputs, cost=8.0)
def align_expert(inputs: AlignInputs[Path], params: AlignParams, output: Path, tools: StepTools) -> None:
    """Reorder the units of one expert so that they agree with the zoo's base; what it computes stays the same.

    Writes ``expert.safetensors`` and ``record.json``: the inner product with the base ``before`` and ``after``, the
    share of units that ``moved`` by group, by how much its features differ (``apart``: relative, float64), and on which
    images it was matched (``looked``) and compared (``checked``). Where features are the residual stream itself, its
    order moves them: a classifier that is the expert's own is to be reordered with it (``features``, their order); a
    head that others read too stays as it is, and so does the order of the stream.
    """
    zoo = params.sources.open()
    record, tensors = _aligned(zoo, zoo.manifest.expert_table[params.expert], params, tools.progress)
    write_weights(output / EXPERT, Memory(tensors), metadata={"task": params.task, "aligned_by": params.method})
    (output / RECORD).write_text(json.dumps(record, indent=1))
    moved = ", ".join(f"{group} {share:.0%}" for group, share in record["moved"].items() if share)
    tools.log(
        f"{params.expert}: inner product with the base {record['before']:.4g} → {record['after']:.4g}; "
        f"moved {moved or 'nothing'}"
    )


@step("adopt_aligned", label="Putting the experts into the zoo", params=PutParams, inputs=PutInputs, cost=0.1)
def put_into_zoo(inputs: PutInputs[Path], params: PutParams, output: Path, tools: StepTools) -> None:
    """Copy aligned experts into the zoo's folder and name them in its manifest; writes ``aligned.json``."""
    zoo = params.sources.open()
    records = {name: json.loads((folder / RECORD).read_text("utf-8")) for name, folder in inputs.expert.items()}
    moved = {name: order for name, record in records.items() if (order := record.pop("features"))}
    files = {name: folder / EXPERT for name, folder in inputs.expert.items()}
    with alone(zoo.folder):
        put_aligned(zoo, files, params.listed, params.method, params.called, _reordered_heads(zoo, moved))
    tools.store.zoos.add(zoo.folder)  # so that pages list it
    told = {
        params.listed[name]: {"expert": name, **record, "classifier": name in moved} for name, record in records.items()
    }
    (output / DOCUMENT).write_text(json.dumps(told, indent=1))


def _reading(manifest: Manifest, task: str) -> list[str]:
    """Return the tasks whose heads read the features of a task's expert: its own, and those shifted from it."""
    return [other.name for other in manifest.tasks if task in (other.name, other.shifted_from)]


def _reads_alone(zoo: Zoo, expert: Expert) -> bool:
    """Tell whether the head of an expert's task is its own classifier, which no other model of the zoo reads with."""
    manifest = zoo.manifest
    tasks = _reading(manifest, expert.task)
    alone = [other.name for other in manifest.experts if other.task in tasks] == [expert.name]
    return alone and not manifest.references and are_classifiers(zoo.folder, manifest)


def _reordered_heads(zoo: Zoo, moved: Mapping[str, Sequence[int]]) -> str:
    """Write the zoo's heads with those of some experts for other orders of features; returns the manifest's new file.

    The file's name tells the orders, so that one which the manifest names already is never written over. Experts that
    the manifest says are aligned have their heads in order.
    """
    manifest = read_manifest(zoo.folder)
    orders = {
        task: torch.tensor(order)
        for name, order in moved.items()
        if (expert := manifest.expert_table.get(name)) is not None and not expert.aligned
        for task in _reading(manifest, expert.task)
    }
    if not orders:
        return ""
    told = json.dumps([manifest.heads, {task: order.tolist() for task, order in orders.items()}])
    target = f"aligned/heads-{hashlib.sha256(told.encode()).hexdigest()[:8]}.safetensors"
    write_reordered(zoo.folder, manifest, orders, zoo.folder / target)
    return target


def _models(zoo: Zoo, expert: Expert) -> tuple[Weights, Weights, Weights]:
    """Return the zoo's base, the expert's own base, and the expert."""
    return zoo.weights("base"), encoder_part(open_weights(zoo.path(str(expert.base)))), zoo.weights(expert.name)


def _aligned(
    zoo: Zoo, expert: Expert, asked: AlignParams, progress: Progress
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Align one expert; returns what was found and the tensors to write."""
    config, row = architecture(zoo.folder, zoo.manifest), ALIGNMENTS[asked.method]
    params = params_of(row, asked.params)
    progress(0.0, "reading weights")
    base, theirs, own = (load_encoder(config, weights).double() for weights in _models(zoo, expert))
    looked: list[dict[str, Any]] = []
    images = images_for(zoo, expert.task, lambda split, count: looked.append({"split": split, "n": count}))
    whole, match = symmetry_for(config, params), row.load()
    symmetry = whole if asked.own_head else whole.within
    given = replace(images, progress=lambda share, message="": progress(0.05 + 0.85 * share, message))
    orders = match(base, theirs if params.by == "base" else own, symmetry, params, given)
    before = dict(own.named_parameters())
    after = reordered(before, symmetry, orders)
    progress(0.9, "comparing what it computes")
    matched, pictured = tuple(looked), expert.task in zoo.data
    samples = images(CHECKED) if pictured else _blank(zoo, config)
    order = symmetry.order_of_features(orders)
    apart_by = check_same_function(own, before, after, samples, order)
    moves = order is not None and not torch.equal(order, torch.arange(len(order)))
    fixed = _detached(base)
    record = {
        "before": objective(fixed, _detached(own)),
        "after": objective(fixed, {name: tensor.detach() for name, tensor in after.items()}),
        "moved": {group: float((order != torch.arange(len(order))).double().mean()) for group, order in orders.items()},
        "apart": apart_by,
        "features": order.tolist() if moves else None,
        "method": asked.method,
        "params": asked.params,
        "looked": matched,
        "checked": looked[-1] if pictured else {"split": "", "n": len(samples)},
    }
    prefix = zoo.modality.layout_of(config).prefix
    return record, {prefix + name: tensor.detach().float().contiguous() for name, tensor in after.items()}


def images_for(zoo: Zoo, task: str, told: Callable[[str, int], None] = lambda split, count: None) -> Images:
    """Return the images of a task that a matching may look at, in float64; test images only where there are no others.

    Args:
        zoo: with the task's data.
        task: its name.
        told: which split images are taken from and how many, whenever some are.

    Raises:
        ZooError: when they are asked for, where the task has none.
    """
    preprocess = preprocessing(zoo.folder, zoo.manifest)

    def some(splits: Sequence[str], count: int) -> tuple[str, Any]:
        split = split_of(zoo, task, splits)
        rows = zoo.data[task].usable(split)
        rows = rows[spread(count, len(rows))]
        told(split, len(rows))
        return split, rows

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
