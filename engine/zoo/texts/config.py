"""A text encoder's architecture as the config that is published with it. Free of torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import ZooError
from ...preparation import Tokenisation
from ..modality import FLOAT, TowerSize, read_json
from .families import ANSWERS, FAMILIES, Family, family_of
from .pieces import Pieces
from .words import Words

USUAL_LENGTH = 512
DECODER = "num_decoder_layers"
PADDING = "pad_token_id"
END = "eos_token_id"
NULLS = ("layer_norm_eps", "position_embedding_type", "scale_decoder_outputs")  # as with what a family calls usual,
# a null of these counts as not stated

LARGEST = {
    "vocabulary": 5_000_000,
    "width": 16_384,
    "layers": 256,
    "heads": 1024,
    "inner": 65_536,
    "positions": 100_000,
    "segments": 64,
    "head": 1024,
}


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
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ZooError(
            f"The backbone's config {origin} is of the kind {kind!r:.40}; known kinds of text models are "
            f"{', '.join(FAMILIES)}. Choose a model of one of them."
        )
    family = FAMILIES[kind]
    left_open = {name for name in (*family.usual, *NULLS) if config.get(name) is None}
    found = {**family.usual, **{name: value for name, value in config.items() if name not in left_open}}
    if family.answers:  # the first T5 scales what its tied output reads, later ones do neither
        found.setdefault("scale_decoder_outputs", found["tie_word_embeddings"] is not False)
    if missing := [name for name in family.sizes.values() if name not in found]:
        raise ZooError(f"The backbone's config {origin} lacks {', '.join(sorted(missing))}.")
    _check_sizes(found, family, origin)
    _check_arithmetic(found, family, origin)
    _check_padding(found, family, origin)
    return found


def with_tokens(config: Mapping[str, Any], special: Sequence[int], origin: str) -> dict[str, Any]:
    """Return a checked config that masks the token that texts are padded with, and ends answers as they end.

    Args:
        config: of the encoder; what it says of both is often the default of transformers, and nothing goes by it there,
            because a tokenizer hands over a mask and ends of its own.
        special: ids of the tokenizer's tokens that pad, begin and end (and more), negative where it has none.
        origin: how an error names the config.

    Raises:
        ZooError: positions are counted from another id than the tokenizer's, or the encoder has no row for it.
    """
    family, pad, end = family_of(config), special[0], special[2]
    found = dict(config)
    if family.answers and end >= 0:
        found[END] = end
    if PADDING not in family.usual or pad < 0 or config[PADDING] == pad:
        return found
    if family.offset:
        raise ZooError(
            f"The config {origin} gives {PADDING} as {config[PADDING]}, and the tokenizer pads with token {pad}. A "
            f"{family.title} counts positions from that id, so both must be the same. Take the tokenizer that was "
            "published with the model, or correct the config."
        )
    found[PADDING] = pad
    _check_padding(found, family, origin)
    return found


def _check_sizes(found: Mapping[str, Any], family: Family, origin: str) -> None:
    """Refuse sizes that nobody has, also of a decoder that is given a depth of its own."""
    places = [(name, LARGEST[size]) for size, name in family.sizes.items()]
    if found.get(DECODER) is not None:
        places.append((DECODER, LARGEST["layers"]))
    for name, largest in places:
        value = found[name]
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= largest:
            raise ZooError(
                f"The backbone's config {origin} gives {name} as {value!r:.60}; a whole number from 1 to {largest:,} "
                "is expected."
            )


def _check_arithmetic(found: Mapping[str, Any], family: Family, origin: str) -> None:
    """Refuse what is computed otherwise than an encoder here does."""
    width, heads = family.size(found, "width"), family.size(found, "heads")
    if "head" not in family.sizes and width % heads:
        raise ZooError(
            f"The backbone's config {origin} divides {width} dimensions among {heads} heads, which leaves a rest."
        )
    place, known = family.activations
    if found[place] not in known:
        raise ZooError(
            f"The backbone's config {origin} asks for {found[place]!r:.40}; {' or '.join(known)} is computed."
        )
    if found.get("position_embedding_type", "absolute") != "absolute":
        raise ZooError(
            f"The backbone's config {origin} asks for {found['position_embedding_type']!r:.40} positions; absolute "
            "ones are computed."
        )
    epsilon = found.get("layer_norm_eps", 1e-12)
    if not isinstance(epsilon, int | float) or not 0 < epsilon < 1:
        raise ZooError(f"The backbone's config {origin} gives layer_norm_eps as {epsilon!r:.40}; 1e-12 is usual.")


def _check_padding(found: Mapping[str, Any], family: Family, origin: str) -> None:
    """Refuse an id of padding that the table of embeddings has no row for."""
    if PADDING not in family.usual:
        return
    value, rows = found[PADDING], family.size(found, "vocabulary")
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < rows:
        raise ZooError(
            f"The backbone's config {origin} gives {PADDING} as {value!r:.60}; a token's id from 0 to {rows - 1:,} is "
            "expected. Correct it, or leave it out."
        )


def longest(config: Mapping[str, Any]) -> int | None:
    """Return how many tokens a text may have; None where the architecture sets no bound."""
    family = family_of(config)
    return family.size(config, "positions") - family.offset if "positions" in family.sizes else None


def check_words(config: Mapping[str, Any], words: Words | Pieces, stated: Tokenisation) -> None:
    """Refuse a vocabulary and a length that an encoder has no rows for.

    Raises:
        ZooError: with both sizes.
    """
    rows = family_of(config).size(config, "vocabulary")
    fits = (
        len(words) == rows if isinstance(words, Words) else len(words) <= rows
    )  # published tables may have spare rows
    if not fits:
        raise ZooError(
            f"The vocabulary {stated.vocabulary} has {len(words):,} words, the encoder {rows:,}. "
            "Choose the vocabulary that the base was trained with."
        )
    most = longest(config)
    if most is not None and stated.length > most:
        raise ZooError(
            f"Texts of {stated.length} tokens are asked for, and the encoder has {most} "
            "positions. Lower `length` in `tokenisation`."
        )


def width_of(config: Mapping[str, Any]) -> int:
    """Return the dimensions of features: those of the hidden states, or of ranked answers."""
    family = family_of(config)
    return ANSWERS if family.answers else family.size(config, "width")


def encoder_size(config: Mapping[str, Any]) -> TowerSize:
    """Count parameters and work of a text model on a text of the greatest length, as for image encoders.

    Of the work of a T5 its encoder's is counted; that of its decoder depends on the answers.
    """
    family = family_of(config)
    sizes = {name: config[own] for name, own in family.sizes.items()}
    width, depth = sizes["width"], sizes["layers"]
    inner = sizes.get("inner", 4 * width)
    tokens = sizes.get("positions", USUAL_LENGTH)
    inside = sizes["heads"] * sizes.get("head", width // sizes["heads"])
    attention = ((inside, width),) * 3 + ((width, inside),)
    perceptron = ((inner, width),) * (2 if _gated(config) else 1) + ((width, inner),)
    matrices = own = (attention + perceptron) * depth
    if family.answers:
        matrices += (attention * 2 + perceptron) * _decoder_blocks(config)
    small = depth * (4 * width + inner + width + 4 * width) + 2 * width
    table = (sizes["vocabulary"] + sizes.get("positions", 0) + sizes.get("segments", 0)) * width
    pooler = width * width + width if family.pooler else 0
    products = sum(2 * math.prod(shape) for shape in own) * tokens + depth * 4 * tokens**2 * width
    widest = tokens * (inner + 6 * width) + tokens**2 * sizes["heads"]
    parameters = sum(math.prod(shape) for shape in matrices) + small + table + pooler
    where = {"dim": width, "width": width, "blocks": depth, "tokens": 1} if family.layout.matrices else {}
    flops = float(products + 2 * width * width)
    return TowerSize(width_of(config), matrices, parameters, flops, FLOAT * widest, where)


def _gated(config: Mapping[str, Any]) -> bool:
    return str(config.get("feed_forward_proj")).startswith("gated")


def _decoder_blocks(config: Mapping[str, Any]) -> int:
    """Return the depth of a T5's decoder: its encoder's where none is given."""
    return family_of(config).size(config, "layers") if config.get(DECODER) is None else config[DECODER]


def writer_bytes(config: Mapping[str, Any]) -> int:
    """Return the bytes of a T5 in float32: its tables, encoder and decoder, but for norms and position biases."""
    family = family_of(config)
    width, layers, inner = (family.size(config, name) for name in ("width", "layers", "inner"))
    attention = 4 * width * family.size(config, "heads") * family.size(config, "head")
    forward = (3 if _gated(config) else 2) * width * inner
    tables = (1 if config["tie_word_embeddings"] else 2) * family.size(config, "vocabulary") * width
    return FLOAT * (tables + layers * (attention + forward) + _decoder_blocks(config) * (2 * attention + forward))
