"""A text encoder's architecture as the config that is published with it. Free of torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import ZooError
from ...preparation import Tokenisation
from ..modality import FLOAT, TowerSize, read_json
from .words import Words

KINDS = ("bert",)
LARGEST = {
    "vocab_size": 5_000_000,
    "hidden_size": 16_384,
    "num_hidden_layers": 256,
    "num_attention_heads": 1024,
    "intermediate_size": 65_536,
    "max_position_embeddings": 100_000,
    "type_vocab_size": 64,
}
USUAL = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "pad_token_id": 0}
ACTIVATIONS = ("gelu",)  # that the encoder computes


def read_config(path: Path) -> dict[str, Any]:
    """Read a model config.

    Raises:
        ZooError: it is missing, unreadable, or of an encoder that is not known.
    """
    return checked(read_json(path), path.name)


def checked(config: Any, origin: str) -> dict[str, Any]:
    """Return a model config with the usual values where it states none, and sizes that somebody could have.

    Args:
        config: what was read.
        origin: how an error names it.

    Raises:
        ZooError: a part is missing, of another form, or so large that building it would fill the memory.
    """
    if not isinstance(config, Mapping):
        raise ZooError(f"The backbone's config {origin} holds no mapping; a model config is expected.")
    if config.get("model_type") not in KINDS:
        raise ZooError(
            f"The backbone's config {origin} is of the kind {config.get('model_type')!r:.40}; texts are encoded by "
            f"{', '.join(KINDS)}. Choose a model of this kind."
        )
    missing = LARGEST.keys() - config.keys()
    if missing:
        raise ZooError(f"The backbone's config {origin} lacks {', '.join(sorted(missing))}.")
    for name, largest in LARGEST.items():
        value = config[name]
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= largest:
            raise ZooError(
                f"The backbone's config {origin} gives {name} as {value!r:.60}; a whole number from 1 to {largest:,} "
                "is expected."
            )
    found = {**USUAL, **config}
    if found["hidden_size"] % found["num_attention_heads"]:
        raise ZooError(
            f"The backbone's config {origin} divides {found['hidden_size']} dimensions among "
            f"{found['num_attention_heads']} heads, which leaves a rest."
        )
    if found["hidden_act"] not in ACTIVATIONS:
        raise ZooError(f"The backbone's config {origin} asks for {found['hidden_act']!r:.40}; gelu is computed.")
    epsilon = found["layer_norm_eps"]
    if not isinstance(epsilon, int | float) or not 0 < epsilon < 1:
        raise ZooError(f"The backbone's config {origin} gives layer_norm_eps as {epsilon!r:.40}; 1e-12 is usual.")
    return found


def check_words(config: Mapping[str, Any], words: Words, stated: Tokenisation) -> None:
    """Refuse a vocabulary and a length that an encoder has no rows for.

    Raises:
        ZooError: with both sizes.
    """
    if len(words) != config["vocab_size"]:
        raise ZooError(
            f"The vocabulary {stated.vocabulary} has {len(words):,} words, the encoder {config['vocab_size']:,}. "
            "Choose the vocabulary that the base was trained with."
        )
    if stated.length > config["max_position_embeddings"]:
        raise ZooError(
            f"Texts of {stated.length} tokens are asked for, and the encoder has {config['max_position_embeddings']} "
            "positions. Lower `length` in `tokenisation`."
        )


def encoder_size(config: Mapping[str, Any]) -> TowerSize:
    """Count parameters and work of a BERT encoder on a text of the greatest length, as for image encoders."""
    width, inner, depth = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    tokens = config["max_position_embeddings"]
    block = ((width, width),) * 4 + ((inner, width), (width, inner))
    matrices = block * depth
    small = depth * (4 * width + inner + width + 4 * width) + 2 * width
    table = (config["vocab_size"] + tokens + config["type_vocab_size"]) * width
    pooler = width * width + width
    products = sum(2 * math.prod(shape) for shape in matrices) * tokens + depth * 4 * tokens**2 * width
    widest = tokens * (inner + 6 * width) + tokens**2 * config["num_attention_heads"]
    parameters = sum(math.prod(shape) for shape in matrices) + small + table + pooler
    return TowerSize(width, matrices, parameters, float(products + 2 * width * width), FLOAT * widest)
