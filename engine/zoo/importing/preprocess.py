"""Preparation of a checkpoint's images, read from the forms in which people keep it, or given by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...errors import CheckpointError, SettingError, nearest
from ...manifest import Preprocess
from ...recipe import explain
from ...weights.pickle_machine import Made, Name
from ..images.config import OPENAI_MEAN, OPENAI_STD
from .documents import read_json
from .sources import Source

PRESETS = {  # name → mean and standard deviation of red, green and blue
    "openai": (OPENAI_MEAN, OPENAI_STD),
    "inception": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
CONTROLS = (  # name, mean and standard deviation of all colours
    ("values from 0 to 1", 0.0, 1.0),
    ("values from -0.5 to 0.5", 0.5, 1.0),
    ("values from -2 to 2", 0.5, 0.25),
)
PUBLISHED = "openai"  # the preset of the checkpoints that _CHECKPOINT means
_CHECKPOINT = re.compile(r"(openai/clip-vit-|laion/CLIP-ViT-)[\w.-]+")  # as the hub names OpenAI's and most of LAION's
RESAMPLING = {2: "bilinear", 3: "bicubic"}  # PIL's numbers
KEPT_AS = ("val_preprocess", "preprocess_val", "preprocess", "transform", "test_transform")  # in pickles
MAX_OBJECTS = 10_000
SETTING = "preprocess"  # as requests call it
HOW = (
    f"Give --preprocess: {', '.join(PRESETS)}, a preprocessor_config.json or open_clip_config.json, or "
    "mean=R,G,B;std=R,G,B"
)


class Unreadable(Exception):
    """A preprocessing that is stated, but that this project cannot carry out; says why."""


def given_preprocess(text: str, size: int) -> Preprocess:
    """Return the preprocessing that a person asks for.

    Args:
        text: a row of PRESETS, a JSON file, or ``mean=R,G,B;std=R,G,B`` with optional ``interpolation=`` and
            ``resize_mode=``.
        size: of the images that the architecture takes, in pixels.

    Raises:
        SettingError: it says nothing that can be used.
    """
    if text in PRESETS:
        return _preset(text, size)
    if text.endswith(".json"):
        try:
            found = from_document(read_json(Path(text).expanduser()), size)
        except (Unreadable, CheckpointError) as error:
            raise SettingError(f"--preprocess {text:.200}: {error}", SETTING) from error
        if found is None:
            raise SettingError(f"{text:.200} is missing or names no mean and standard deviation.", SETTING)
        return found
    if "=" not in text:
        raise SettingError(f"There is no preprocessing '{text:.60}'. {nearest(text, PRESETS)} {HOW}.", SETTING)
    pairs = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    try:
        values: dict[str, Any] = {"size": size, **{name.strip(): value.strip() for name, value in pairs.items()}}
        for name in ("mean", "std"):
            values[name] = tuple(float(part) for part in values.get(name, "").split(","))
        return Preprocess.model_validate(values)
    except (ValueError, ValidationError) as error:
        reason = explain(error, Preprocess) if isinstance(error, ValidationError) else str(error)
        raise SettingError(f"--preprocess '{text:.200}' cannot be used: {reason} {HOW}.", SETTING) from error


def named_checkpoint(source: Source) -> tuple[str, str]:
    """Return a published checkpoint that a config names as what it was loaded from, and the config; else two ''.

    A name is a hint: weights that were fine-tuned from a checkpoint may have seen other images than it.
    """
    for document, place, key in (
        (source.config, "config.json", "_name_or_path"),
        (source.adapter, "adapter_config.json", "base_model_name_or_path"),
    ):
        name = document.get(key)
        if isinstance(name, str) and _CHECKPOINT.fullmatch(name):
            return name, place
    return "", ""


def usual(size: int) -> tuple[tuple[str, Preprocess], ...]:
    """Return the preprocessings that published CLIP weights were trained with, by name."""
    return tuple((name, _preset(name, size)) for name in PRESETS)


def unusual(size: int) -> tuple[tuple[str, Preprocess], ...]:
    """Return preprocessings of other kinds, by what they do; images that fit one as well decide nothing."""
    return tuple((name, Preprocess(size=size, mean=(mean,) * 3, std=(std,) * 3)) for name, mean, std in CONTROLS)


def from_document(document: Mapping[str, Any], size: int) -> Preprocess | None:
    """Read a preprocessing of Hugging Face, of open_clip or of this project; None where a document holds none.

    Raises:
        Unreadable: it does something that is not supported.
    """
    for inside in ("preprocess_cfg", "preprocess"):
        if isinstance(document.get(inside), dict):
            document = document[inside]
    if "image_mean" in document or "image_processor_type" in document:
        return _hugging_face(document, size)
    if "mean" in document or "std" in document:
        return _open_clip(document, size)
    return None


def _preset(name: str, size: int) -> Preprocess:
    mean, std = PRESETS[name]
    return Preprocess(size=size, mean=mean, std=std)


def _open_clip(document: Mapping[str, Any], size: int) -> Preprocess:
    values = {name: document[name] for name in ("mean", "std", "interpolation", "resize_mode") if name in document}
    values = {"mean": OPENAI_MEAN, "std": OPENAI_STD, **values, "size": _side(document.get("size", size))}
    for name in ("mean", "std"):
        if isinstance(values[name], int | float):
            values[name] = (values[name],) * 3
    if values.get("interpolation") == "random":
        values["interpolation"] = "bicubic"  # what open_clip evaluates with then
    return _checked(values, size)


def _hugging_face(document: Mapping[str, Any], size: int) -> Preprocess:
    crops, resizes = (bool(document.get(name, True)) for name in ("do_center_crop", "do_resize"))
    crop, target = document.get("crop_size", size), document.get("size", size)
    square = isinstance(target, dict) and "height" in target
    if not resizes:
        raise Unreadable("it does not resize images")
    if not square and not crops:
        raise Unreadable("it resizes the shorter edge and does not crop")
    if crops and _side(crop) != _side(target):
        raise Unreadable(f"it resizes to {_side(target)} and crops {_side(crop)} pixels; both must be the same")
    _check_rescaling(document)
    resample = document.get("resample", 3)
    if not isinstance(resample, int) or resample not in RESAMPLING:
        raise Unreadable(f"it resamples by Pillow's number {resample!r:.60}; 2 and 3 are supported")
    normalises = document.get("do_normalize", True)
    values = {
        "mean": document.get("image_mean", OPENAI_MEAN) if normalises else (0.0, 0.0, 0.0),
        "std": document.get("image_std", OPENAI_STD) if normalises else (1.0, 1.0, 1.0),
        "size": _side(target),
        "interpolation": RESAMPLING[resample],
        "resize_mode": "squash" if square else "shortest",
    }
    return _checked(values, size)


def _check_rescaling(document: Mapping[str, Any]) -> None:
    """Refuse pixels that are not divided by 255, as this project divides them."""
    if not document.get("do_rescale", True):
        raise Unreadable("it takes pixels from 0 to 255 (do_rescale is false); values from 0 to 1 are supported")
    factor = document.get("rescale_factor", 1 / 255)
    if not isinstance(factor, int | float) or not abs(factor * 255 - 1) <= 1e-3:
        raise Unreadable(f"its rescale_factor is {factor!r:.60}; 1/255 is supported")


def _side(value: Any) -> int:
    """Return the side of a square that a document states in one of many ways."""
    sides = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
    if not sides or len({side for side in sides if isinstance(side, int)}) != 1 or not isinstance(sides[0], int):
        raise Unreadable(f"its size is {value!r:.60}; one side of a square is supported")
    return sides[0]


def _checked(values: Mapping[str, Any], size: int) -> Preprocess:
    if values["size"] != size:
        raise Unreadable(f"it makes images of {values['size']} pixels; the weights take {size}")
    try:
        return Preprocess.model_validate(values)
    except ValidationError as error:
        raise Unreadable(explain(error, Preprocess)) from error


def from_pickle(root: Any, size: int) -> Preprocess | None:
    """Read the transforms that a whole pickled module keeps; None where it keeps none.

    Args:
        root: what the pickle machine read.
        size: of the images that the architecture takes, in pixels.

    Raises:
        Unreadable: a transform that is not supported.
    """
    for kept in KEPT_AS:
        for made in _objects(root):
            found = made.get(kept) if isinstance(made, dict) else made.state.get(kept)
            if isinstance(found, Made) and found.name.name == "Compose":
                return _from_steps(found.state.get("transforms", ()), size)
    return None


def _objects(root: Any) -> Iterator[Made | dict]:
    waiting, seen = [root], set()
    while waiting and len(seen) < MAX_OBJECTS:
        value = waiting.pop(0)
        if id(value) in seen or not isinstance(value, Made | dict):
            continue
        seen.add(id(value))
        yield value
        waiting += list((value.state if isinstance(value, Made) else value).values())


def _from_steps(steps: Sequence[Any], size: int) -> Preprocess:
    values: dict[str, Any] = {"mean": (0.0,) * 3, "std": (1.0,) * 3}
    for step in steps:
        kind = step.name.name if isinstance(step, Made) else step.name if isinstance(step, Name) else str(step)
        if kind == "Resize":
            side = step.state.get("size")
            values["size"] = _side(side)
            values["resize_mode"] = "squash" if isinstance(side, list | tuple) and len(side) == 2 else "shortest"
            values["interpolation"] = _interpolation(step.state.get("interpolation"))
        elif kind == "CenterCrop":
            if _side(step.state.get("size")) != values.get("size"):
                raise Unreadable("it resizes and crops to different sizes; both must be the same")
        elif kind == "Normalize":
            values |= {name: _numbers(step.state.get(name)) for name in ("mean", "std")}
        elif kind not in ("ToTensor", "_convert_to_rgb", "convert_to_rgb"):
            raise Unreadable(f"it holds a {kind:.60}, which is not supported")
    if "size" not in values:
        raise Unreadable("it does not resize images")
    return _checked(values, size)


def _interpolation(value: Any) -> str:
    """Return the name of an interpolation: Pillow's number, or torchvision's enumeration in one of two spellings."""
    if isinstance(value, Made):
        value = next((str(part).lower() for part in reversed(value.args) if isinstance(part, str)), value)
    return RESAMPLING.get(value, str(value)) if isinstance(value, int) else str(value)


def _numbers(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(number, int | float) for number in value):
        raise Unreadable("its mean and standard deviation are no lists of numbers")
    return tuple(float(number) for number in value)
