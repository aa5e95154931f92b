"""The shapes that calibration and analysis write in their signatures are those they get and give."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
from jaxtyping import TypeCheckError, install_import_hook
with install_import_hook(["engine.calibration", "engine.analysis"], "beartype.beartype"):
    import numpy as np, open_clip.transformer as vit, torch
    from types import SimpleNamespace
    from typing import get_args
    from engine.analysis import accuracy, bias, neighbours, projection, samples
    from engine.calibration import fit_deep
    from engine.catalog import CALIBRATORS, params_of
torch.set_num_threads(1)
sizes = {"a": 9, "b": 7}
merged = {task: torch.randn(n, 10) for task, n in sizes.items()}
expert = {task: z + 1 for task, z in merged.items()}
visual = vit.VisionTransformer(8, 4, 16, 3, 2, 2.0, output_dim=10)
images = {task: torch.randn(n, 3, 8, 8) for task, n in sizes.items()}
for row in CALIBRATORS.values():
    losses = [{"loss": loss} for loss in get_args(row.params.model_fields["loss"].annotation)]
    for variant in (*losses, *row.variants):
        config = params_of(row, {**row.quick, "steps": 3, "batch_size": 4, **variant})
        calibrator = row.load()()
        if row.deep:
            taught = {task: calibrator.teach(visual, pixels, config) for task, pixels in images.items()}
            fit_deep(calibrator, visual, images, taught, config, 0)
            calibrator.correct_features(visual, images["b"], "b")
        else:
            calibrator.fit(merged, expert, config, 0, lambda step, loss, module: True)
            calibrator.correct(merged["a"], "a")
        if hasattr(calibrator, "sigma"):
            calibrator.sigma(merged["a"], "a")
z, other = np.random.default_rng(0).normal(size=(2, 12, 4)).astype(np.float32)
labels, head = np.arange(12) % 3, SimpleNamespace(weight=np.eye(3, 4), scale=10.0, affine=None)
accuracy.confusion(accuracy.predictions(accuracy.logits(z, head.weight, head.scale)), labels, 3)
accuracy.entropy(z)
bias.bias_of({"a": z}, {"a": other}, {"a": labels}, {"a": 3})
bias.sample_shift(z, other)
samples.sample_table("a", {"merged": z, "expert": other}, head, labels, np.arange(12), "evaluate", other)
neighbours.nearest_neighbours(z, 0, 3)
projection.joint_projection({"merged": {"a": z}, "expert": {"a": other}}, {"a": np.arange(12)}, method="pca")
try:
    calibrator.row(3)
except TypeCheckError:
    print("checked")
"""


@pytest.mark.processes
def test_annotated_shapes_hold():
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "checked"
