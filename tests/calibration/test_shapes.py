"""The shapes that calibration and analysis write in their signatures are those they get and give."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
from jaxtyping import TypeCheckError, install_import_hook
with install_import_hook(["engine.calibration", "engine.analysis"], "beartype.beartype"):
    import numpy as np, open_clip.transformer as vit, torch
    from types import SimpleNamespace
    from engine.analysis import accuracy, bias, neighbours, projection, samples
    from engine.calibration import IntervMerge, ProbSurgery, Surgery, SurgeryV2, fit_deep
    from engine.catalog.calibrators import IntervMergeParams, ProbSurgeryParams, SurgeryParams, SurgeryV2Params
torch.set_num_threads(1)
sizes = {"a": 9, "b": 7}
merged = {task: torch.randn(n, 10) for task, n in sizes.items()}
expert = {task: z + 1 for task, z in merged.items()}
small = {"steps": 3, "batch_size": 4}
for kind, config in [
    (Surgery, SurgeryParams(rank=2, **small)),
    (Surgery, SurgeryParams(rank=2, sharing="all", loss="l2", **small)),
    (Surgery, SurgeryParams(rank=2, adam_semantics="shared", **small)),
    (ProbSurgery, ProbSurgeryParams(hidden=3, loss="smooth_l1", **small)),
    (ProbSurgery, ProbSurgeryParams(hidden=3, sharing="dfa", dfa_step="sum", **small)),
    (ProbSurgery, ProbSurgeryParams(hidden=3, sharing="pda", **small)),
]:
    calibrator = kind()
    calibrator.fit(merged, expert, config, 0, lambda step, loss, module: True)
    calibrator.correct(merged["a"], "a")
calibrator.sigma(merged["a"], "a")
visual = vit.VisionTransformer(8, 4, 16, 2, 2, 2.0, output_dim=10)
images = {task: torch.randn(n, 3, 8, 8) for task, n in sizes.items()}
for kind, config in [
    (IntervMerge, IntervMergeParams(function="loreft", positions="all", **small)),
    (IntervMerge, IntervMergeParams(mini="four", mini_dims=8, blocks=(1,), **small)),
    (SurgeryV2, SurgeryV2Params(rank=2, **small)),
]:
    calibrator = kind()
    fit_deep(calibrator, visual, images, {t: calibrator.teach(visual, x, config) for t, x in images.items()}, config, 0)
    calibrator.correct_features(visual, images["b"], "b")
z, other = np.random.default_rng(0).normal(size=(2, 12, 4)).astype(np.float32)
labels, head = np.arange(12) % 3, SimpleNamespace(weight=np.eye(3, 4), scale=10.0)
accuracy.confusion(accuracy.predictions(accuracy.logits(z, head.weight, head.scale)), labels, 3)
accuracy.entropy(z)
bias.bias_of({"a": z}, {"a": other}, {"a": labels}, {"a": 3})
bias.dimension_shift(z, other)
samples.sample_table("a", {"merged": z, "expert": other}, head, labels, np.arange(12), "evaluate", other)
neighbours.nearest_neighbours(z, 0, 3)
projection.joint_projection({"merged": {"a": z}, "expert": {"a": other}}, {"a": np.arange(12)}, method="pca")
try:
    calibrator.row(3)
except TypeCheckError:
    print("checked")
"""


def test_annotated_shapes_hold():
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "checked"
