"""MergeLens: merge fine-tuned vision experts, see what merging does to their representations, and repair it.

Installed, it loads what a run left behind in three lines of other code::

    import mergelens

    encoder = mergelens.load_merged("runs/ta/merged.safetensors")
    features = encoder(encoder.preprocess(images))  # un-normalised, (n, dim)

    surgery = mergelens.load_calibrator("runs/ta/calibrators/surgery.safetensors")
    corrected = surgery.correct(features, "digits")

Importing it loads neither torch nor anything else that is large.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from .calibration import Calibrator

# Waiting threads sleep instead of spinning: two contended threads made one loop 60 times slower. Read when numeric
# libraries are first loaded, so it is set before any of them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")
# A download from the hub asks the hub for nothing else and tells it nothing of this machine.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

__all__ = ["__version__", "load_calibrator", "load_merged"]


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
        that act inside the encoder have ``correct_features(encoder, images, task)`` instead. ``tasks`` lists the tasks
        it was trained for, ``config`` the parameters of its recipe.

    Raises:
        CheckpointError: the file is missing, damaged, or holds no calibrator.
    """
    from pathlib import Path

    from .calibration import load_calibrator as load

    return load(Path(path))
