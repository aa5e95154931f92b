"""A teacher of any architecture: what it thinks of a task's training images, for distillation into a zoo's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...errors import ZooError, nearest
from ...manifest import Task
from ...merging.adamerging import predict
from ...preparation import Preparation
from ...zoo.encoders.backbone import architecture, load_encoder, preprocessing
from ...zoo.folder import Zoo
from ...zoo.modalities import only_alike
from ..steps import StepParams
from .request import Teacher

if TYPE_CHECKING:
    import numpy as np

    from ...store import Store
    from ...zoo.task_data import TaskData


class TeacherParams(StepParams):
    """A teacher as a training is given it."""

    model: str
    task: str
    weights: str  # digest
    heads: str  # digest
    architecture: dict[str, Any]
    preprocess: Preparation
    order: tuple[int, ...]  # the student's classes among the teacher's
    temperature: float
    weight: float


def plan_teacher(asked: Teacher, home: Zoo, student: Task, store: Store) -> TeacherParams:
    """Resolve a teacher for a student's task.

    Args:
        asked: the teacher.
        home: the student's zoo.
        student: the task to learn.
        store: for digests of files.

    Raises:
        ZooError: no such zoo, model, task or head, another kind of data, other classes than the student's, or a model
            that is evaluated linearised.
        DataError: the student's samples lack what the teacher's task makes its own of.
    """
    zoo = Zoo.open(asked.zoo)
    only_alike(home.manifest, zoo.manifest, "Teachers are taken")
    manifest, name = zoo.manifest, asked.task or student.name
    models = ("base", *(reference.name for reference in manifest.references), *manifest.expert_table)
    if asked.model not in models:
        raise ZooError(
            f"The teacher's zoo '{manifest.name}' has no model '{asked.model}'. {nearest(asked.model, models)}"
        )
    if asked.model in manifest.expert_table and manifest.expert_table[asked.model].forward != "standard":
        raise ZooError(
            f"A teacher predicts from features as an encoder gives them, and the expert '{asked.model}' is evaluated "
            "linearised. Name an expert that was trained another way."
        )
    if name not in manifest.task_table:
        raise ZooError(
            f"The teacher's zoo '{manifest.name}' has no task '{name}'. {nearest(name, manifest.task_table)} Name the "
            "task whose head the teacher has."
        )
    if manifest.heads is None:
        raise ZooError(f"The teacher's zoo '{manifest.name}' brings no heads, so the teacher predicts nothing.")
    theirs = manifest.task_table[name].classes
    if set(theirs) != set(student.classes):
        odd = sorted(set(theirs) ^ set(student.classes))
        raise ZooError(
            f"The teacher has {len(theirs)} classes for '{name}', the student's task '{student.name}' has "
            f"{len(student.classes)}; they differ in {', '.join(odd[:4])}. Choose a teacher of the same classes."
        )
    zoo.heads([name])  # there is one, and it fits
    home.data[student.name].seen_from(zoo.folder, manifest.task_table[name])  # they can be read there
    return TeacherParams(
        model=asked.model,
        task=name,
        weights=store.digest_file(zoo.weights_path(asked.model)),
        heads=store.digest_file(zoo.path(manifest.heads)),
        architecture=architecture(zoo.folder, manifest),
        preprocess=preprocessing(zoo.folder, manifest),
        order=tuple(theirs.index(label) for label in student.classes),
        temperature=asked.temperature,
        weight=asked.weight,
    )


def wording_of(asked: Teacher, student: Task) -> dict[str, Any] | None:
    """Return what a teacher's task says of the samples it reads, beside their preparation; None where it says nothing.

    That is the prompt that a text is put into, and the answers that a model ranks.
    """
    zoo = Zoo.open(asked.zoo)
    task = zoo.manifest.task_table[asked.task or student.name]
    found = {"prompt": task.prompt} if task.prompt else {}
    found |= {"answers": list(task.classes)} if zoo.modality.answers(zoo.manifest) else {}
    return found or None


def teacher_logits(
    params: TeacherParams,
    folder: str,
    data: TaskData,
    rows: Sequence[int] | np.ndarray,
    device: torch.device,
    report: Callable[[float, str], None],
) -> Tensor:
    """Return the teacher's logits (n, classes) on training samples as they are, classes in the student's order.

    The teacher reads them as its own zoo does: images in its size, texts with its vocabulary.
    """
    from ...features import encode

    zoo = Zoo.open(folder)
    encoder = load_encoder(params.architecture, zoo.weights(params.model))
    seen = data.seen_from(zoo.folder, zoo.manifest.task_table[params.task])
    samples = seen.samples("train", rows, params.preprocess)
    features = encode(encoder, samples, params.preprocess, device, report)
    head = zoo.heads([params.task])[0][params.task]
    logits = predict(features, head)
    return logits[:, list(params.order)].to(device)
