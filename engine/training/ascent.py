"""Training against a task."""

from __future__ import annotations

from torch import Tensor, nn

from ..catalog.fine_tuning import AscentParams
from ..zoo.encoders.training import Step, Strategy, whole_encoder
from .setting import Setting


def gradient_ascent(encoder: nn.Module, params: AscentParams, setting: Setting) -> Strategy:
    """Train every parameter on the negative loss.

    Source: the baseline of Ilharco et al., ICLR 2023, arXiv:2212.04089, §3.
    Departure: the published baseline runs on however bad the model gets. With ``stop_at_chance``, the default, no step
        is taken on a batch that is predicted no better than by guessing.
    """
    chance = 1 / setting.classes if params.stop_at_chance else -1.0

    def climb(step: Step) -> Tensor:
        step.clear()
        loss = step.gradient()
        if step.accuracy > chance:
            for parameter in step.parameters.values():
                if parameter.grad is not None:
                    parameter.grad.neg_()
            step.move()
        return loss

    return whole_encoder(encoder, climb)
