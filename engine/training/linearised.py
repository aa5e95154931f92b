"""Training the first-order approximation of an encoder around its base."""

from __future__ import annotations

from torch import nn

from ..catalog.row import NoParams
from ..features.linearised import Linearised
from ..zoo.encoders.training import Strategy
from .setting import Setting


def linearised(encoder: nn.Module, params: NoParams, setting: Setting) -> Strategy:
    """Train θ through f(x; θ_0) + ∇f(x; θ_0)·(θ − θ_0); the expert is θ and has to be evaluated the same way.

    Source: Ortiz-Jimenez et al., NeurIPS 2023, arXiv:2305.12827, §4.
    """
    encoder.requires_grad_(True)
    model = Linearised(encoder, dict(encoder.named_parameters()))
    return Strategy(model, encoder.state_dict)
