"""An image encoder's architecture as an open_clip config: from the zoo or open_clip's own list. Free of torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...errors import ZooError, nearest
from ...manifest import Manifest, Preprocess, resolve_inside
from ..modality import FLOAT, TowerSize, read_json

OPENAI_MEAN = (0.48145466, 0.4578275, 0.40821073)
OPENAI_STD = (0.26862954, 0.26130258, 0.27577711)
IMAGE_SIZE = 224  # px of a config that names none: open_clip's own default
LARGEST = {
    "embed_dim": 16_384,
    "width": 16_384,
    "layers": 256,
    "heads": 1024,
    "head_width": 4096,
    "mlp_ratio": 64,
    "image_size": 4096,
    "patch_size": 1024,
    "vocab_size": 5_000_000,
    "context_length": 100_000,
}


def architecture(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Return the open_clip model config of a zoo's backbone.

    Raises:
        ZooError: the config is missing, unreadable or names no known architecture.
    """
    name = manifest.backbone.architecture
    config = _read_config(resolve_inside(folder, name)) if name.endswith(".json") else _named_config(name)
    gelu = manifest.backbone.quick_gelu
    if gelu is not None:
        config["quick_gelu"] = gelu
    return config


def preprocessing(folder: Path, manifest: Manifest) -> Preprocess:
    """Return the zoo's own preprocessing, else OpenAI CLIP's at the architecture's image size.

    Raises:
        ZooError: a vision transformer has positions for images of another size.
    """
    vision = architecture(folder, manifest)["vision_cfg"]
    size, patch, own = vision.get("image_size", IMAGE_SIZE), vision.get("patch_size"), manifest.backbone.preprocess
    if own is None:
        return Preprocess(size=size, mean=OPENAI_MEAN, std=OPENAI_STD)
    whole = isinstance(vision.get("layers"), int) and isinstance(patch, int) and isinstance(size, int)
    if whole and own.size // patch != size // patch:
        raise ZooError(
            f"The zoo prepares images of {own.size} px, but the architecture {manifest.backbone.architecture} has "
            f"positions for images of {size} px. Set `size` of `preprocess` in zoo.yaml to {size}."
        )
    return own


def tower_size(config: Mapping[str, Any]) -> TowerSize | None:
    """Count parameters and work of a config's vision transformer; None for towers of another kind.

    A matrix product with an (n, m) matrix counts 2nm operations a token; attention's own products are added, norms
    and activations are not.
    """
    vision = config["vision_cfg"]
    if not isinstance(vision.get("layers"), int) or not {"width", "image_size"} <= set(vision):
        return None
    if vision.get("patch_size") is None or isinstance(vision["width"], list) or isinstance(config["embed_dim"], list):
        return None
    width, depth, dim = vision["width"], vision["layers"], config["embed_dim"]
    size, patch = (_one(vision[name]) for name in ("image_size", "patch_size"))
    tokens = (size // patch) ** 2 + 1
    hidden = int(width * vision.get("mlp_ratio", 4.0))
    block = ((3 * width, width), (width, width), (hidden, width), (width, hidden))
    matrices = tuple(block * depth)
    stem, head = width * 3 * patch**2, width * dim
    small = depth * (3 * width + width + hidden + width + 4 * width) + 4 * width + width
    parameters = sum(math.prod(shape) for shape in matrices) + stem + head + small + tokens * width
    products = sum(2 * math.prod(shape) for shape in matrices) * tokens + depth * 4 * tokens**2 * width
    flops = float(products + 2 * stem * tokens + 2 * head)
    widest = tokens * (hidden + 6 * width) + tokens**2 * max(1, width // vision.get("head_width", 64)) + 3 * size**2
    inner = {"dim": dim, "width": width, "blocks": depth, "tokens": tokens}
    return TowerSize(dim, matrices, parameters, flops, FLOAT * widest, inner)


def text_parameters(config: Mapping[str, Any]) -> int:
    """Return parameters of a config's CLIP text side, 0 where it has another kind."""
    text = config.get("text_cfg") or {}
    if not {"width", "layers", "vocab_size", "context_length"} <= set(text) or "hf_model_name" in text:
        return 0
    width = text["width"]
    blocks = text["layers"] * (12 * width**2 + 13 * width)
    return (text["vocab_size"] + text["context_length"] + 2 + config["embed_dim"]) * width + blocks + 1


def prompt_flops(config: Mapping[str, Any]) -> float:
    """Return the work of one prompt in a config's CLIP text side, counted as :func:`tower_size` does; 0 without one."""
    text = config.get("text_cfg") or {}
    if not text_parameters(config):
        return 0.0
    width, tokens = text["width"], text["context_length"]
    return float(text["layers"] * (24 * width**2 * tokens + 4 * tokens**2 * width))


def _one(value: Any) -> int:
    return value if isinstance(value, int) else max(value)


def _read_config(path: Path) -> dict[str, Any]:
    return check_config(read_json(path), path.name)


def check_config(config: Any, origin: str) -> dict[str, Any]:
    """Return a model config whose sizes are those of a model that somebody could have.

    Args:
        config: what was read.
        origin: how an error names it.

    Raises:
        ZooError: a part is missing, of another form, or so large that building it would fill the memory.
    """
    missing = {"embed_dim", "vision_cfg"} - set(config if isinstance(config, dict) else ())
    if missing:
        raise ZooError(f"The backbone's config {origin} lacks {', '.join(sorted(missing))}.")
    for part in ("vision_cfg", "text_cfg"):
        if not isinstance(config.get(part, {}), dict):
            raise ZooError(f"The backbone's config {origin} has a `{part}` that is no mapping.")
    if "timm_model_name" in config["vision_cfg"]:
        raise ZooError("Backbones from timm are not supported; give an open_clip ViT config.")
    for part in (config, config["vision_cfg"], config.get("text_cfg", {})):
        for name in LARGEST.keys() & part.keys():
            _check_size(name, part[name], origin)
    return config


def _check_size(name: str, value: Any, origin: str) -> None:
    if value is None and name == "patch_size":  # as open_clip's ResNets have it
        return
    for one in value if isinstance(value, list) and 0 < len(value) <= 8 else [value]:
        number = isinstance(one, int | float) and not isinstance(one, bool)
        if not (number and 0 < one <= LARGEST[name] and (isinstance(one, int) or name == "mlp_ratio")):
            raise ZooError(
                f"The backbone's config {origin} gives {name} as {value!r:.60}; a whole number from 1 to "
                f"{LARGEST[name]:,} is expected."
            )


@cache
def _known_architectures() -> dict[str, Path]:
    """Return open_clip's configs by name; finding the package does not import it (and torch)."""
    spec = find_spec("open_clip")
    if spec is None or not spec.origin:
        raise ZooError("open_clip is not installed; install requirements.txt.")
    return {path.stem: path for path in (Path(spec.origin).parent / "model_configs").glob("*.json")}


def _named_config(name: str) -> dict[str, Any]:
    known = _known_architectures()
    if name not in known:
        raise ZooError(f"open_clip knows no architecture '{name}'. {nearest(name, known)}")
    return _read_config(known[name])


def architectures() -> Iterator[str]:
    """Return names that open_clip knows."""
    yield from sorted(_known_architectures())
