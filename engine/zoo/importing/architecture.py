"""Which architecture a checkpoint has, from the shapes of its tensors and what its form says."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...errors import CheckpointError, nearest
from ...types import Weights
from ...weights.huggingface import vision_config
from .sources import Source, read_json

QUICK_GELU_WIDTHS = (768, 1024)  # OpenAI's ViT-B and ViT-L; the larger ones were never trained with QuickGELU
_BLOCK = re.compile(r"visual\.transformer\.resblocks\.(\d+)\.ln_1\.weight")


@dataclass(frozen=True)
class Architecture:
    """An architecture as the manifest names it."""

    name: str  # a name that open_clip knows, or '' for one of its own
    config: dict[str, Any]  # open_clip's model config
    warnings: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """For people."""
        vision = self.config["vision_cfg"]
        own = f"ViT, {vision['layers']} blocks of width {vision['width']}, patches of {vision['patch_size']}"
        return self.name or f"{own}, {'QuickGELU' if self.config['quick_gelu'] else 'GELU'}"


def recognise(source: Source, visual: Weights, asked: str = "", quick_gelu: bool | None = None) -> Architecture:
    """Recognise a base's architecture.

    Args:
        source: where the tensors come from; its config and its classes are asked first.
        visual: the canonical ``visual.*`` tensors, projection included.
        asked: a person's word on it: a name that open_clip knows, or a file with an open_clip model config.
        quick_gelu: a person's word on the activation; None believes the checkpoint.

    Raises:
        CheckpointError: not a CLIP ViT, another one than asked for, or the number of attention heads cannot be known.
    """
    shapes = _from_shapes(visual)
    warnings: list[str] = []
    stated = _asked_config(asked) if asked else _stated_config(source)
    if stated is not None:
        _compare(stated, shapes, asked or f"{source.path.name}: config.json")
    heads = stated["vision_cfg"]["head_width"] if stated else _head_width(source, shapes["vision_cfg"]["width"])
    gelu = quick_gelu if quick_gelu is not None else _activation(source, stated, shapes, warnings)
    config = {**shapes, "quick_gelu": gelu, "vision_cfg": {**shapes["vision_cfg"], "head_width": heads}}
    if stated and isinstance(stated.get("text_cfg"), dict):
        config["text_cfg"] = stated["text_cfg"]
    return Architecture(_known_name(config), config, tuple(warnings))


def _asked_config(asked: str) -> dict[str, Any]:
    import open_clip

    if asked.endswith(".json"):
        return _filled(read_json(Path(asked).expanduser()), asked)
    if asked not in open_clip.list_models():
        raise CheckpointError(f"open_clip knows no architecture '{asked:.60}'. {nearest(asked, _known())}")
    return _filled(dict(open_clip.get_model_config(asked)), asked)


def _stated_config(source: Source) -> dict[str, Any] | None:
    """What a config beside the weights says; None where there is none."""
    if source.open_clip:
        return _filled(source.open_clip, source.path.name)
    return vision_config(source.config) if source.config else None


def _filled(config: dict[str, Any], origin: str) -> dict[str, Any]:
    """An open_clip model config with its defaults written out."""
    vision = config.get("vision_cfg")
    sizes = ("image_size", "layers", "width", "patch_size", "head_width")
    if not isinstance(vision, dict) or any(
        not isinstance(vision.get(name, 1), int) or vision.get(name, 1) < 1 for name in sizes
    ):
        raise CheckpointError(f"{origin} is no open_clip config of a ViT: vision_cfg needs {', '.join(sizes[:4])}.")
    defaults = {"image_size": 224, "layers": 12, "width": 768, "patch_size": 16, "head_width": 64}
    return {"quick_gelu": False, **config, "vision_cfg": {**defaults, **vision}}


def _from_shapes(visual: Weights) -> dict[str, Any]:
    needed = ("visual.conv1.weight", "visual.positional_embedding", "visual.proj", "visual.class_embedding")
    for name in (*needed, "visual.transformer.resblocks.0.mlp.c_fc.weight"):
        if name not in visual.names:
            raise CheckpointError(
                f"The base has no {name}. "
                + (
                    "Choose a complete CLIP model, or a CLIPVisionModelWithProjection, as the base."
                    if name == "visual.proj"
                    else "A CLIP ViT is needed."
                )
            )
    patch, positions = visual.shape("visual.conv1.weight"), visual.shape("visual.positional_embedding")
    projection, hidden = visual.shape("visual.proj"), visual.shape("visual.transformer.resblocks.0.mlp.c_fc.weight")
    if (len(patch), len(positions), len(projection), len(hidden)) != (4, 2, 2, 2) or not positions[1]:
        raise CheckpointError(f"The base's patch embedding {patch} or positions {positions} are of no CLIP ViT.")
    width, side = positions[1], math.isqrt(max(positions[0] - 1, 0))
    if side * side + 1 != positions[0] or patch[0] != width or patch[2] != patch[3] or projection[0] != width:
        raise CheckpointError(
            f"The base's shapes do not belong together: patch embedding {patch}, positions {positions}, projection "
            f"{projection}. A CLIP ViT with square images and patches is needed."
        )
    blocks = {int(found[1]) for name in visual.names if (found := _BLOCK.fullmatch(name))}
    if blocks != set(range(len(blocks))):
        raise CheckpointError(f"The base's blocks are numbered {sorted(blocks)[:5]} …; 0, 1, 2 … is expected.")
    vision = {"image_size": side * patch[2], "layers": len(blocks), "width": width, "patch_size": patch[2]}
    return {"embed_dim": projection[1], "vision_cfg": {**vision, "mlp_ratio": hidden[0] / width}}


def _compare(stated: dict[str, Any], found: dict[str, Any], origin: str) -> None:
    for name in ("image_size", "layers", "width", "patch_size"):
        if stated["vision_cfg"][name] != found["vision_cfg"][name]:
            raise CheckpointError(
                f"{origin} says {name} {stated['vision_cfg'][name]}; the weights have "
                f"{found['vision_cfg'][name]}. They do not belong together."
            )


def _head_width(source: Source, width: int) -> int:
    """Width of an attention head: stated by a pickled module, else that of a known architecture, else 64."""
    if source.pickled:
        for name, value in source.pickled.settings.items():
            if name.endswith("resblocks.0.attn.num_heads") and "visual" in name and isinstance(value, int) and value:
                return width // value
    known = {config["vision_cfg"]["width"]: config["vision_cfg"].get("head_width", 64) for config in _known().values()}
    if width not in known and width % 64:
        raise CheckpointError(
            f"The number of attention heads cannot be told from weights of width {width}. Give the Hugging Face folder "
            "with its config.json, or the architecture's config with --architecture."
        )
    return known.get(width, 64)


def _activation(source: Source, stated: dict[str, Any] | None, shapes: dict[str, Any], warnings: list[str]) -> bool:
    """QuickGELU or GELU: stated by a config or a pickled module's classes, else the field's habit, with a warning."""
    if stated is not None:
        return bool(stated["quick_gelu"])
    if source.pickled:
        classes = {
            kind.rsplit(".", 1)[-1] for place, kind in source.pickled.classes.items() if "visual" in place or not place
        }
        if "QuickGELU" in classes or "GELU" in classes:
            return "QuickGELU" in classes
    where = str(source.path).lower()
    if any(word in where for word in ("laion", "datacomp")):
        guess, why = False, "its name speaks of weights that were trained with GELU"
    elif shapes["vision_cfg"]["width"] in QUICK_GELU_WIDTHS:
        guess, why = True, "OpenAI's weights of this size, which most public experts start from, have it"
    else:
        guess, why = False, "models of this size were trained with it"
    warnings.append(
        f"The base does not say which activation it was trained with. {'QuickGELU' if guess else 'GELU'} is assumed, "
        f"because {why}. A wrong one computes something else without any error; correct it if you know better."
    )
    return guess


def _known_name(config: dict[str, Any]) -> str:
    wanted = _signature(config)
    plain = next((name for name, known in _known().items() if _signature(known) == wanted), "")
    return plain


def _signature(config: dict[str, Any]) -> tuple[Any, ...]:
    vision = config["vision_cfg"]
    return (
        config["embed_dim"],
        bool(config.get("quick_gelu", False)),
        *(vision[name] for name in ("image_size", "layers", "width", "patch_size")),
        vision.get("head_width", 64),
        round(vision.get("mlp_ratio", 4.0) * vision["width"]),
    )


@cache
def _known() -> dict[str, dict[str, Any]]:
    """open_clip's plain CLIP ViTs: nothing but width, depth, patches, image size and head width differs."""
    import open_clip

    plain = {"image_size", "layers", "width", "patch_size", "head_width", "mlp_ratio"}
    found = {}
    for name in sorted(open_clip.list_models(), key=lambda name: (len(name), name)):
        config = open_clip.get_model_config(name)
        vision, text = config["vision_cfg"], config.get("text_cfg", {})
        if name.startswith("ViT-") and set(vision) <= plain and "hf_model_name" not in text:
            found[name] = dict(config)
    return found
