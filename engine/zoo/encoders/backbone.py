"""A zoo's encoder, of whatever modality: built from a config, filled with weights, fed with prepared samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import ZooError
from ...layouts import OPEN_CLIP, bare
from ...preparation import Preparation
from ...types import Weights
from ...weights import read_into
from ..modalities import of_config, of_preparation
from .architecture import architecture, preprocessing

__all__ = [
    "PREFIX",
    "architecture",
    "build_encoder",
    "features_of",
    "forward_with",
    "load_encoder",
    "misfits",
    "normalised",
    "outline",
    "prefix_of",
    "preprocessing",
    "resized",
    "sample_bytes",
    "to_tensor",
]

PREFIX = OPEN_CLIP.prefix  # of image encoders' tensors


def prefix_of(config: Mapping[str, Any]) -> str:
    """Return what the names of an encoder's tensors begin with."""
    return of_config(config).layout_of(config).prefix


def build_encoder(config: Mapping[str, Any]) -> nn.Module:
    """Return an encoder without values yet, in evaluation mode: prepared samples → un-normalised features (n, dim).

    Raises:
        ZooError: the config cannot be built.
    """
    return outline(config).to_empty(device="cpu").eval().requires_grad_(False)


def outline(config: Mapping[str, Any]) -> nn.Module:
    """Return the same encoder on the meta device: names and shapes, no memory.

    Raises:
        ZooError: the config cannot be built.
    """
    return of_config(config).outline(config)


def misfits(config: Mapping[str, Any], weights: Weights) -> list[str]:
    """Return everything in which weights differ from an architecture, a sentence each; nothing but headers is read.

    Raises:
        ZooError: the config cannot be built.
    """
    prefix = prefix_of(config)
    expected = {prefix + name: tuple(tensor.shape) for name, tensor in outline(config).state_dict().items()}
    found = set(weights.names)
    sentences = [f"They lack {name}." for name in expected if name not in found]
    sentences += [
        f"They have {name}, which the architecture has not." for name in weights.names if name not in expected
    ]
    sentences += [
        f"{name} has shape {weights.shape(name)}; the architecture has {shape}."
        for name, shape in expected.items()
        if name in found and weights.shape(name) != shape
    ]
    return sentences


def load_encoder(config: Mapping[str, Any], weights: Weights) -> nn.Module:
    """Return an encoder with the tensors of a model.

    Raises:
        ZooError: a tensor is missing or of another shape than the architecture's.
    """
    return filled(build_encoder(config), config, weights)


def filled(encoder: nn.Module, config: Mapping[str, Any], weights: Weights) -> nn.Module:
    """Copy the tensors of a model into an encoder of its architecture, and return it.

    Raises:
        ZooError: a tensor is missing or of another shape than the architecture's.
    """
    prefix = prefix_of(config)
    with torch.no_grad():
        for name, parameter in encoder.state_dict(keep_vars=True).items():
            stored = prefix + name
            if stored not in weights.names:
                raise ZooError(f"The weights hold no {stored}, which the backbone's architecture has.")
            if weights.shape(stored) != tuple(parameter.shape):
                raise ZooError(
                    f"{stored} has shape {weights.shape(stored)}; the backbone's architecture has "
                    f"{tuple(parameter.shape)}. Choose weights of this architecture."
                )
            read_into(weights, stored, parameter.data)
    return encoder


def forward_with(encoder: nn.Module, weights: Mapping[str, Tensor], samples: Tensor) -> Tensor:
    """Return features (n, dim) with some of the encoder's weights replaced; differentiable in them.

    Args:
        encoder: the module that gives the structure.
        weights: tensors by canonical name (``visual.…``, ``bert.…``).
        samples: prepared, (n, …).
    """
    return torch.func.functional_call(encoder, {bare(name): tensor for name, tensor in weights.items()}, (samples,))


def to_tensor(samples: Any, preparation: Preparation) -> Tensor:
    """Turn samples, as task data give them, into what an encoder takes."""
    return normalised(resized(samples, preparation), preparation)


def resized(samples: Any, preparation: Preparation) -> Tensor:
    """Turn samples into a compact tensor (n, …): uint8 images (n, h, w, 3) into (n, 3, size, size), ids as they are."""
    return of_preparation(preparation).prepared(samples, preparation)


def normalised(prepared: Tensor, preparation: Preparation) -> Tensor:
    """Turn prepared samples into what an encoder takes, on the device that they are on."""
    return of_preparation(preparation).finished(prepared, preparation)


def features_of(encoder: nn.Module, samples: Any, preparation: Preparation) -> Tensor:
    """Return features (n, dim) of prepared samples on the encoder's device, as ``resized`` makes them."""
    modality = of_preparation(preparation)
    return modality.features(encoder, modality.finished(samples, preparation))


def sample_bytes(encoder: nn.Module, preparation: Preparation) -> int:
    """Estimate the bytes that one sample takes at the widest place of an encoder."""
    return of_preparation(preparation).bytes_each(encoder, preparation.extent)
