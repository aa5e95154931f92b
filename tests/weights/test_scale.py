"""Merging at its true size: from files to a file with bounded memory."""

import sys

import pytest
import torch

from benchmarks import merging as benchmark
from engine.weights import open_weights


def test_the_benchmark_has_the_size_of_the_published_model():
    shapes = benchmark.shapes(*benchmark.SIZES["ViT-B/32"])
    assert len(shapes) == 152
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == 87_849_216


@pytest.mark.slow
def test_eight_experts_are_merged_within_two_and_a_half_gibibytes(tmp_path):
    benchmark.make_checkpoints(tmp_path, "ViT-B/32")
    stored = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert stored > 9 * 351e6
    for what in ("task_arithmetic", "ties"):
        command = [sys.executable, benchmark.__file__, "--folder", str(tmp_path), "--one", what, "--keep"]
        assert benchmark.run_apart(command, limit=8)["peak_gib"] < 2.5
    base, *experts = (
        open_weights(tmp_path / f"{name}.safetensors") for name in ("base", *(f"expert{k}" for k in range(8)))
    )
    name = "visual.transformer.resblocks.7.attn.out_proj.weight"
    start = base.tensor(name)
    vectors = torch.stack([expert.tensor(name) for expert in experts]) - start
    found = open_weights(tmp_path / "merged-task_arithmetic.safetensors").tensor(name)
    torch.testing.assert_close(found, start + 0.3 * vectors.sum(dim=0))
    kept = open_weights(tmp_path / "merged-ties.safetensors").tensor(name) - start
    positive, negative = vectors.clamp(min=0), vectors.clamp(max=0)
    assert (kept.abs() <= 0.3 * torch.maximum(positive.sum(dim=0), -negative.sum(dim=0)) + 1e-6).all()
    assert 0.5 < (kept != 0).double().mean() < 1 - 0.8**8 + 0.1
