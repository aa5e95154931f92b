"""MergeLens: merge fine-tuned vision experts, see what merging does to their representations, and repair it.

Installed, it runs a recipe and loads what a run left behind in a few lines of other code::

    import mergelens

    report = mergelens.run({"zoo": "mini8", "merge": {"method": "ties"}}, out="runs/ta")
    print(report.average["merged"].within)  # percent, over in-domain tasks

    encoder = mergelens.load_merged("runs/ta/merged.safetensors")
    features = encoder(encoder.preprocess(images))  # un-normalised, (n, dim)

    surgery = mergelens.load_calibrator("runs/ta/calibrators/surgery.safetensors")
    corrected = surgery.correct(features, "digits")

These three, ``run``, ``load_merged`` and ``load_calibrator``, are what other code may rely on. Importing the package
loads neither torch nor anything else that is large.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from torch import nn

    from .calibration import Calibrator
    from .report import Report
    from .types import Progress

# Waiting threads sleep instead of spinning: two contended threads made one loop 60 times slower. Read when numeric
# libraries are first loaded, so it is set before any of them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")
# A download from the hub asks the hub for nothing else and tells it nothing of this machine.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

__all__ = ["__version__", "load_calibrator", "load_merged", "run"]


def run(
    recipe: Mapping[str, Any] | Path | str, out: Path | str | None = None, progress: Progress | None = None
) -> Report:
    """Run a recipe in this process: merge, encode, calibrate and measure.

    Args:
        recipe: a document, or the file of one. What it leaves out has its default.
        out: a new folder for all that the run leaves: report, weights, calibrators, features, samples.
        progress: told how far the run is, from 0 to 1, with a short text.

    Returns:
        The report: accuracy and bias by state and task, and what they were measured on.

    Raises:
        EngineError: the recipe or its zoo cannot be used, or a step of the run failed.
    """
    from pathlib import Path

    from .pipeline.local import run_recipe
    from .recipe import parse_recipe, read_recipe
    from .store import Store

    document = read_recipe(Path(recipe)) if isinstance(recipe, str | Path) else parse_recipe(recipe)
    return run_recipe(document, Store(), out=Path(out) if out is not None else None, progress=progress)


def load_merged(
    path: Path | str, *, task: str | None = None, base: Path | str | None = None, zoo: str | None = None
) -> nn.Module:
    """Load a merged model as an image encoder.

    Args:
        path: ``merged.safetensors``, the folder ``merged/`` of a merge whose weights depend on the task or the image,
            or the folder of a run.
        task: for which task, where the weights depend on it.
        base: the base's weights file, where the weights depend on task or image and are rebuilt from it.
        zoo: a zoo with the same backbone, for weights that do not say their architecture; also gives the base.

    Returns:
        An open_clip vision tower, or a router and one, in evaluation mode and without gradients: float32
        (n, 3, size, size) → un-normalised features (n, dim). Its ``preprocess`` turns uint8 images (n, h, w, 3) or
        Pillow images into what it takes.

    Raises:
        CheckpointError: the file is missing, damaged, or does not say enough.
        ZooError: the weights do not fit the architecture.
    """
    from .pipeline.export.loading import load_merged as load

    return load(path, task=task, base=base, zoo=zoo)


def load_calibrator(path: Path | str) -> Calibrator:
    """Load a calibrator of any kind.

    Args:
        path: ``calibrators/NAME.safetensors`` of a run.

    Returns:
        A calibrator: ``correct(z, task)`` maps un-normalised merged features (n, dim) to corrected ones; calibrators
        that act inside the encoder have ``correct_features(encoder, images, task)`` instead; one that learned merging
        coefficients acts in the model of its own, in the folder of its name. ``tasks`` lists the tasks it was trained
        for, ``config`` the parameters of its recipe.

    Raises:
        CheckpointError: the file is missing, damaged, or holds no calibrator.
    """
    from pathlib import Path

    from .calibration import load_calibrator as load

    return load(Path(path))
