"""Training of calibrators that act inside the encoder."""

# ruff: noqa: F722
from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor, nn

from ..catalog.deep_calibrators import DeepParams
from ..errors import CalibrationError
from .coefficients import JointCalibrator, LinearMerge
from .deep import DeepCalibrator
from .deep_updates import ImageBatches, deep_update
from .loop import run_loop
from .report import FitReport, Monitor
from .sampling import check_pairs, check_rows
from .text_tower import tower_of
from .tower import dtype_of, frozen

MONITOR_EVERY = 25
CACHE_BYTES = 2 * 2**30


def fit_deep(
    module: DeepCalibrator,
    encoder: nn.Module,
    images: Mapping[str, Float[Tensor, "_ 3 h w"]],
    expert_features: Mapping[str, Float[Tensor, "_ aligned"]],
    config: DeepParams,
    seed: int,
    monitor: Monitor | None = None,
    monitor_every: int = MONITOR_EVERY,
    cache_bytes: int = CACHE_BYTES,
    merge: LinearMerge | None = None,
) -> FitReport:
    """Reset a calibrator and train it inside a merged encoder; all tasks train together, each with its own Adam.

    Args:
        module: the calibrator.
        encoder: the merged model's; frozen meanwhile and left as it was.
        images: task → pre-processed images; tasks may differ in number.
        expert_features: task → the output of the calibrator's ``teach`` for the task's expert on these images, in
            their order (for IntervMerge the expert's plain features).
        config: parameters of the catalog row.
        seed: start values and batches.
        monitor: sees the state after every ``monitor_every`` updates and may cancel.
        monitor_every: updates in an interval.
        cache_bytes: how much may be held of what the encoder computes before the first module; more than that is
            computed again for every batch.
        merge: where merging coefficients learn as well; the encoder then gives the structure only, and the
            calibrator's ``merged_weights`` the model that it has to act in.

    Raises:
        UnpairedFeatures: a task's images and expert features differ in number.
        CalibrationError: a task without images or smaller than a batch; an unusable encoder or teacher; a merge for a
            calibrator that learns no coefficients.
    """
    if merge is not None and not isinstance(module, JointCalibrator):
        raise CalibrationError(f"{module.method} does not learn merging coefficients.")
    with frozen(encoder):
        tower = tower_of(encoder)
        for task in images:
            check_rows(task, len(images[task]), len(expert_features.get(task, ())), config.batch_size)
        check_pairs(expert_features, expert_features, config.batch_size)
        stack = module.reset(tuple(images), tower.sizes(), config, seed, dtype_of(tower), tower.weight.device)
        _check_teacher(module, expert_features)
        student = module.join(tower, merge, stack) if isinstance(module, JointCalibrator) else None
        cache_bytes = cache_bytes if student is None else 0
        feed = ImageBatches(
            module, tower, images, expert_features, config.batch_size, seed, cache_bytes, student is not None
        )
        update = deep_update(module, tower, stack, feed, student)
        report = run_loop(module, stack, config.steps, update, monitor, monitor_every)
    module.zero_grad(set_to_none=True)
    return report


def _check_teacher(module: DeepCalibrator, expert_features: Mapping[str, Tensor]) -> None:
    width = module.target_width(module.sizes)
    for task, features in expert_features.items():
        if features.shape[1] != width:
            raise CalibrationError(
                f"{module.method} needs {width} columns from the expert of '{task}', found {features.shape[1]}. "
                "Compute them with its `teach` method and the expert's encoder."
            )
