"""Setting of an expert's training beside the encoder, and the way from a recipe's name to its strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from ..catalog import FINE_TUNING, params_of, row_of
from ..layouts import OPEN_CLIP, Layout
from ..zoo.encoders.training import Strategy

Samples = Callable[[int], Mapping[str, Tensor]]


def _none(count: int) -> Mapping[str, Tensor]:
    return {}


@dataclass(frozen=True)
class Setting:
    """Setting of the training of one expert.

    ``seed`` is the same for all experts of a zoo; ``classes`` counts those of the head; ``others`` gives at most so
    many prepared samples (n, …) of every other task of the zoo, ``own`` of the expert's; ``layout`` says how the
    encoder's tensors are named and ``many`` what samples are called; ``heads`` counts heads, whose rows have ``width``
    entries. ``outlined`` says that the encoder has no values and nothing is to be looked at: whether the recipe can be
    carried out is all that is asked.
    """

    seed: int = 0
    classes: int = 2
    others: Samples = _none
    own: Samples = _none
    layout: Layout = OPEN_CLIP
    many: str = "images"
    heads: int = 1
    width: int = 1
    outlined: bool = False


def strategy_of(method: str, params: Mapping[str, Any], encoder: nn.Module, setting: Setting) -> Strategy:
    """Prepare an encoder for a recipe of the catalogue.

    Args:
        method: a row's name.
        params: the recipe's own parameters.
        encoder: holds the base's weights; it is trained in place.
        setting: what surrounds it.

    Raises:
        EngineError: an unknown recipe or parameter, or one that cannot be carried out on this encoder.
    """
    row = row_of(FINE_TUNING, method, "recipe of fine-tuning")
    return row.load()(encoder, params_of(row, dict(params)), setting)


def spread(count: int, of: int) -> Sequence[int]:
    """Choose at most ``count`` places among ``of``, evenly spread."""
    return np.linspace(0, of - 1, min(count, of)).round().astype(int).tolist()
