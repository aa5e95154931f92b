"""Joint training that imitates the features of the tasks' experts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..catalog.fine_tuning import Kd4mtlParams
from ..merging.chance import normal
from ..zoo.encoders.training import Imitation, Strategy, whole_encoder
from .setting import Setting

SMALL = 1e-6  # added to squared lengths


def feature_distance(mapped: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean over samples of ‖u/‖u‖ − v/‖v‖‖² for features (n, dim).

    Source: Li & Bilen, ECCV Workshops 2020, arXiv:2007.06889; the constant under the root is that of the authors' code.
    """
    return (_unit(mapped) - _unit(wanted)).square().sum(dim=-1).mean()


def _unit(features: Tensor) -> Tensor:
    return features / (features.square().sum(dim=-1, keepdim=True) + SMALL).sqrt()


def kd4mtl(encoder: nn.Module, params: Kd4mtlParams, setting: Setting) -> Strategy:
    """Train every parameter on several tasks at once while the features, mapped for each task, imitate its expert's.

    Source: Li & Bilen, ECCV Workshops 2020, arXiv:2007.06889: the sum of the tasks' losses and of the distances of
        normalised features, one linear adaptor a task, experts frozen; the authors' code starts adaptors from Xavier's
        normal distribution, without bias, and trains them by an Adam of their own at 0.1 with weight decay 0.0005.
    Departure: the published networks see every image under every task and are compared at maps of features; here each
        expert sees its own task's samples and what is compared is the feature before the head, so an adaptor is a
        matrix and no 1 × 1 convolution. Heads are frozen, tasks are averaged where the paper adds them, and the encoder
        is trained by this trainer's AdamW with its schedule and clipping. λ is one number for all tasks; the authors'
        code has 1, 1 and 2 for theirs.
    """
    whole, like = whole_encoder(encoder), next(encoder.parameters())
    maps = nn.ModuleList(nn.Linear(setting.width, setting.width, bias=False).to(like) for _ in range(setting.heads))
    with torch.no_grad():
        for number, one in enumerate(maps):
            deviation = setting.width**-0.5  # Xavier: √(2 ÷ (inputs + outputs))
            one.weight.copy_(deviation * normal(one.weight.shape, setting.seed, "adaptor", str(number)))
    optimizer = torch.optim.Adam(maps.parameters(), lr=params.adaptor_rate, weight_decay=params.adaptor_decay)
    return Strategy(
        whole.model,
        whole.tensors,
        imitation=Imitation(maps, optimizer, feature_distance, params.weight),
    )
