"""Training experts: from a zoo's base, training samples and frozen heads to weights in the zoo's folder."""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from ...catalog import params_of
from ...errors import DataError, ZooError, nearest
from ...features import choose_device
from ...manifest import Task
from ...mounts import here
from ...store.files import alone
from ...training import Setting, strategy_of
from ...zoo.encoders.backbone import architecture, outline, preprocessing
from ...zoo.folder import Zoo
from ...zoo.images.splits import VALIDATION_SHARE, hold_out
from ...zoo.task_data import graded_in_words
from ..graph import Plan
from ..run.text_heads import heads_step
from ..sources import Sources
from ..steps import A, Inputs, Step, StepParams, apart, step
from .foreseen import keep_training_rate
from .request import FinetuneRequest
from .start import other_base
from .teacher import plan_teacher, wording_of
from .training import VERSION, FinetuneParams, TrainingRun, work

if TYPE_CHECKING:
    from ...store import Store
    from ..tools import StepTools


@dataclass(frozen=True)
class FinetuneInputs(Inputs[A]):
    """Inputs of the training of one expert."""

    heads: A | None = None  # where they are built


class AdoptParams(StepParams):
    """Parameters of putting experts into a zoo."""

    folder: str
    asked: float  # seconds since the epoch: the zoo's own folder changes, so every asking is a step of its own
    replace: bool
    called: str | None = None  # this way of training, where it is not called as its recipe is
    start: str = apart("")  # the zoo whose base the experts start from, where it is another
    sources: Sources = apart()


@dataclass(frozen=True)
class AdoptInputs(Inputs[A]):
    """Trained experts by task."""

    expert: Mapping[str, A] = field(default_factory=dict)


def plan_finetune(asked: FinetuneRequest, store: Store) -> Plan:
    """Plan the training of experts: one step for each task, and one that puts them into the zoo's folder.

    Raises:
        EngineError: a task without training samples or head, one that has an expert already, or a recipe that cannot
            be carried out on the zoo's encoder.
    """
    zoo = Zoo.open(asked.zoo)
    tasks = _tasks(zoo, asked)
    _check_recipe(zoo, asked)
    heads = plan_heads(zoo, store)
    if asked.config.row.joint:
        _check_joint(zoo, tasks, asked)
        steps = {asked.config.row.reference: plan_training(zoo, tasks, asked, store, heads)}
    else:
        steps = {task.name: plan_training(zoo, [task], asked, store, heads) for task in tasks}
    params = AdoptParams(
        folder=str(zoo.folder),
        asked=time.time(),
        replace=asked.replace,
        called=asked.called or None,
        start=str(Zoo.open(asked.start.zoo).folder) if asked.start else "",
        sources=Sources(zoo=str(zoo.folder)),
    )
    adopt = adopt_experts.plan(params, AdoptInputs[str]({task: node.key for task, node in steps.items()}))
    return Plan((*([heads] if heads else []), *steps.values(), adopt), adopt.key)


def plan_heads(zoo: Zoo, store: Store) -> Step | None:
    """Return the step that builds heads from the base's text encoder; None for a zoo that brings heads."""
    if zoo.manifest.heads:
        return None
    if zoo.text_problem:
        raise ZooError(
            f"The zoo '{zoo.manifest.name}' has no heads to train against, and none can be built: "
            f"{zoo.text_problem.rstrip('.')}. Add `heads:` to zoo.yaml, or make a zoo with `zoo init --base "
            "--data --heads prototypes`."
        )
    return heads_step(zoo, store, store.digest_file(zoo.weights_path("base")))


def _tasks(zoo: Zoo, wanted: FinetuneRequest) -> list[Task]:
    """Return the tasks to train on, each with what it needs."""
    table, many = zoo.manifest.task_table, zoo.modality.many
    if wanted.tasks == "all":
        tasks = [task for task in zoo.manifest.tasks if _can_learn(zoo, task, wanted)]
        if not tasks:
            raise ZooError(
                f"The zoo '{zoo.manifest.name}' has no in-domain task with training {many} and labels (a split "
                f"`train`) and without an expert. Add {many}, name tasks with --task, or replace experts with "
                "--replace."
            )
        return tasks
    for name in wanted.tasks:
        if name not in table:
            raise ZooError(f"The zoo '{zoo.manifest.name}' has no task '{name}'. {nearest(name, table)}")
        if name not in zoo.data or not zoo.data[name].has("train"):
            raise DataError(
                f"Task '{name}' has no training {many}. Its data needs a split `train` with labels (train_x and "
                f"train_y of an .npz); test {many} are never trained on."
            )
        if table[name].grades:
            raise DataError(f"{graded_in_words(table[name])} So no expert of it is trained on classes here.")
        expert = zoo.manifest.expert_of(name, wanted.method)
        if expert is not None and not wanted.replace and not wanted.config.row.joint:
            raise ZooError(f"Task '{name}' has the expert '{expert.name}' already; --replace trains another one.")
    return [table[name] for name in dict.fromkeys(wanted.tasks)]


def _can_learn(zoo: Zoo, task: Task, wanted: FinetuneRequest) -> bool:
    free = wanted.replace or wanted.config.row.joint or not zoo.manifest.expert_of(task.name, wanted.method)
    return free and _has_samples(zoo, task)


def _has_samples(zoo: Zoo, task: Task) -> bool:
    there = task.role == "in" and not task.grades and task.name in zoo.data
    return there and zoo.data[task.name].has("train")


def _others(zoo: Zoo, task: Task, wanted: FinetuneRequest, store: Store) -> dict[str, str] | None:
    """Digests of the other tasks' samples, where the recipe looks at them."""
    row = wanted.config.row
    if "other_tasks" not in row.needs or not getattr(params_of(row, wanted.config.params), "looks", True):
        return None
    found = {
        other.name: zoo.data[other.name].identity(store.digest_file)
        for other in zoo.manifest.tasks
        if other.name != task.name and _has_samples(zoo, other)
    }
    if not found:
        many = zoo.modality.many
        raise ZooError(
            f"{row.title} looks at {many} of the other tasks, and the zoo '{zoo.manifest.name}' has "
            f"training {many} of no in-domain task but '{task.name}'. Add tasks, or choose another recipe."
        )
    return found


def _imitated(
    zoo: Zoo, tasks: Sequence[Task], wanted: FinetuneRequest, store: Store
) -> dict[str, tuple[str, str]] | None:
    """Return name and digest of each task's expert, where the recipe imitates experts.

    Raises:
        ZooError: a task without an expert, or one that is evaluated linearised.
    """
    if "experts" not in wanted.config.row.needs:
        return None
    way, found = wanted.config.params.get("experts") or "", {}
    for task in tasks:
        there = [expert for expert in zoo.manifest.experts if expert.task == task.name and way in ("", expert.method)]
        if not there:
            by = f" trained by '{way}'" if way else ""
            raise ZooError(
                f"{wanted.config.row.title} imitates an expert of every task, and '{task.name}' has none{by}. Train "
                "experts first, or name tasks that have one with --task."
            )
        if there[0].forward != "standard":
            raise ZooError(
                f"{wanted.config.row.title} imitates features as an encoder gives them, and the expert "
                f"'{there[0].name}' is evaluated linearised. Name another way of training: --param experts=standard."
            )
        found[task.name] = (there[0].name, store.digest_file(zoo.weights_path(there[0].name)))
    return found


def _check_recipe(zoo: Zoo, wanted: FinetuneRequest) -> None:
    """Refuse a recipe that cannot be carried out on the zoo's encoder, and samples varied as this kind cannot be."""
    kind, config = zoo.modality, architecture(zoo.folder, zoo.manifest)
    setting = Setting(layout=kind.layout_of(config), many=kind.many, outlined=True)
    strategy_of(wanted.config.method, wanted.config.params, outline(config), setting)
    varied = wanted.config.augmentation
    if varied and varied not in kind.augmentations:
        raise DataError(
            f"Training {kind.many} are not varied by '{varied}'; known is {', '.join(kind.augmentations)}. Leave "
            "--augmentation out."
        )


def _check_joint(zoo: Zoo, tasks: Sequence[Task], wanted: FinetuneRequest) -> None:
    """Refuse joint training of one task, or where there is a reference already."""
    kind = zoo.modality
    if len(tasks) < 2:
        raise ZooError(
            f"Joint training needs two tasks with training {kind.many} or more; there is {tasks[0].name} alone. Add "
            f"{kind.many}, or train an expert by another recipe."
        )
    name = wanted.config.row.reference
    if not wanted.replace and any(reference.name == name for reference in zoo.manifest.references):
        raise ZooError(
            f"The zoo '{zoo.manifest.name}' has a jointly trained model '{name}' already; --replace trains another one."
        )
    if wanted.config.batch_size < len(tasks):
        raise DataError(
            f"A batch of {wanted.config.batch_size} cannot hold one {kind.one} of each of {len(tasks)} tasks. Choose "
            "a larger batch size (--batch-size)."
        )


def plan_training(zoo: Zoo, tasks: Sequence[Task], wanted: FinetuneRequest, store: Store, heads: Step | None) -> Step:
    """Plan the training of one model on a task, or on several together."""
    names = [task.name for task in tasks]
    if heads is None:
        zoo.heads(names)  # they are there, and fit
    start = zoo if wanted.start is None else other_base(wanted.start, zoo, store)
    base = start.weights("base")
    counts = {name: _samples(zoo, name) for name in names}
    parameters = sum(math.prod(base.shape(name)) for name in base.names)
    config = wanted.config.resolved(sum(counts.values()), parameters, len(tasks), zoo.modality.augmentations[0])
    for name, count in counts.items():
        if config["batch_size"] // len(tasks) > count:
            raise DataError(
                f"Task '{name}' has {count} {zoo.modality.many} to train on, fewer than a batch of "
                f"{config['batch_size'] // len(tasks)}. Choose a smaller batch size (--batch-size)."
            )
    device, digest = choose_device().type, store.digest_file(start.weights_path("base"))
    brought, digests = zoo.manifest.heads, {name: zoo.data[name].identity(store.digest_file) for name in names}
    joint = wanted.config.row.joint
    params = FinetuneParams(
        task=wanted.config.row.reference if joint else names[0],
        base=digest,
        data="" if joint else digests[names[0]],
        heads=heads.key if heads else store.digest_file(zoo.path(brought)),
        architecture=architecture(zoo.folder, zoo.manifest),
        preprocess=preprocessing(zoo.folder, zoo.manifest),
        config=config,
        validation_share=VALIDATION_SHARE,
        joint=digests if joint else None,
        imitated=_imitated(zoo, tasks, wanted, store),
        others=None if joint else _others(zoo, tasks[0], wanted, store),
        teacher=plan_teacher(wanted.teacher, zoo, tasks[0], store) if wanted.teacher else None,
        wording=wording_of(wanted.teacher, tasks[0]) if wanted.teacher else None,
        teacher_zoo=str(Zoo.open(wanted.teacher.zoo).folder) if wanted.teacher else "",
        start=None if start is zoo else start.manifest.name,
        start_zoo="" if start is zoo else str(start.folder),
        checkpoint_every=wanted.checkpoint_every,
        sources=Sources(zoo=str(zoo.folder), heads=str(store.folder_of(heads.key)) if heads else ""),
    )
    return finetune.plan(
        params,
        FinetuneInputs[str](heads.key if heads else None),
        label="Training one model on all tasks" if joint else f"Training the expert of {tasks[0].label}",
        device=f"{device}/float32",
        gpu=device == "cuda",
    )


def _samples(zoo: Zoo, task: str) -> int:
    """Return how many samples of a task are trained on; refuse a task that leaves none to watch the training on."""
    data = zoo.data[task]
    rows, held_out = hold_out(data, VALIDATION_SHARE)
    if not len(data.usable("val") if held_out is None else held_out):
        kind = zoo.modality
        raise DataError(
            f"Task '{task}' has no {kind.one} to watch the training on: at most one training {kind.one} of each class, "
            f"and no split `val`. Add training {kind.many}, or {kind.many} with labels as a split `val` (val_x and "
            "val_y of an .npz)."
        )
    return len(rows)


@step(
    "finetune",
    label="Training an expert",
    params=FinetuneParams,
    inputs=FinetuneInputs,
    version=VERSION,
    cost=work,
    gpu=True,
)
def finetune(inputs: FinetuneInputs[Path], params: FinetuneParams, output: Path, tools: StepTools) -> None:
    """Train one expert; goes on from a checkpoint of the same training where there is one.

    Writes ``expert.safetensors`` (``visual.*``, ``bert.*`` …), ``factors.safetensors`` where the recipe leaves low-rank
    factors, and ``record.json`` (config, counts, curve, accuracies, versions).
    """
    started = time.time()
    run = TrainingRun(params, tools)
    run.train()
    run.write_expert(output)
    record = {
        "task": params.task,
        "base": params.base,
        "data": params.data,
        "heads": params.heads,
        "config": params.config,
        **({"joint": list(params.joint)} if params.joint else {}),
        **({"imitated": {task: name for task, (name, _) in params.imitated.items()}} if params.imitated else {}),
        **({"teacher": params.teacher.identity()} if params.teacher else {}),
        **({"start": params.start} if params.start else {}),
        "images": run.counts,
        "validation_accuracy": {"base": run.curve[0][2], "expert": run.curve[-1][2]},
        "columns": list(run.COLUMNS),
        "curve": run.curve,
        "seconds": round(run.seconds, 1),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started + run.seconds)),
        "device": run.device.type,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("torch", "numpy")}},
    }
    (output / "record.json").write_text(json.dumps(record, indent=1))
    keep_training_rate(tools.store, params.architecture, params.config, run.seconds)
    run.forget_checkpoint()


@step("adopt_experts", label="Putting the experts into the zoo", params=AdoptParams, inputs=AdoptInputs, cost=0.1)
def adopt_experts(inputs: AdoptInputs[Path], params: AdoptParams, output: Path, tools: StepTools) -> None:
    """Copy trained experts into the zoo's folder and name them in its manifest; writes ``experts.json``."""
    from ...zoo.making.adopt import adopt

    zoo = params.sources.open()
    records = {}
    for task, folder in inputs.expert.items():
        records[task] = (folder, json.loads((folder / "record.json").read_text()))
    start = Zoo.open(here(params.start)) if params.start else None
    with alone(zoo.folder):
        names = adopt(zoo, records, replace=params.replace, called=params.called or "", start=start)
    tools.store.zoos.add(zoo.folder)  # so that pages list it
    (output / "experts.json").write_text(
        json.dumps({names[task]: record for task, (_, record) in records.items()}, indent=1)
    )
