"""Calibrators: small modules that repair a merged model's features."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .row import CalibratorRow, Params, Preset

Loss = Literal["l1", "mse", "smooth_l1"]


class TrainingParams(Params):
    """What every trained calibrator shares."""

    steps: int = Field(
        1000, ge=1, le=100_000, title="Training steps", description="Adam updates for each task's module."
    )
    batch_size: int = Field(16, ge=1, le=4096, title="Batch size", description="Images of a task in one update.")
    learning_rate: float = Field(1e-3, gt=0, le=1, title="Learning rate", description="Adam's step size.")
    loss: Loss = Field(
        "l1", title="Distance", description="Between corrected and expert features, mean over images and dimensions."
    )


class SurgeryParams(TrainingParams):
    """Parameters of Surgery."""

    rank: int = Field(16, ge=1, le=1024, title="Rank", description="Width of the module's hidden layer.")


ROWS = (
    CalibratorRow(
        name="surgery",
        title="Surgery",
        category="output",
        params=SurgeryParams,
        function=".calibration.surgery:Surgery",
        summary="A small two-layer module per task that predicts the representation bias and subtracts it.",
        equation=r"\hat z = z - U_t\,\mathrm{ReLU}(D_t z)",
        source="Yang et al., Representation Surgery for Multi-Task Model Merging, ICML 2024, arXiv:2402.02705",
        url="https://arxiv.org/abs/2402.02705",
        presets=(Preset("paper", "As published", {"rank": 16, "steps": 1000}, "arXiv:2402.02705"),),
        departure="The bias is subtracted, as in the code; IntervMerge §3.1 writes it without the subtraction.",
    ),
)
