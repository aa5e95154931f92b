"""Loading of merged models and calibrators for use in other code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from ...errors import CheckpointError, DataError
from ...manifest import Preprocess
from ...recipe import explain
from ...types import Weights
from ...weights import encoder_part, open_weights
from ...zoo.encoders.backbone import load_encoder, to_tensor
from ...zoo.folder import Zoo
from ...zoo.metadata import FORMAT, METADATA_KEY, describe_model
from ..run.merging import load_merged_encoder

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_DOCUMENT_BYTES = 50_000_000


def load_merged(
    path: Path | str, *, task: str | None = None, base: Path | str | None = None, zoo: str | None = None
) -> nn.Module:
    """Return an image encoder from merged weights; see :func:`engine.load_merged`."""
    place = _place(Path(path))
    opened = Zoo.open(zoo) if zoo is not None else None
    document = _document(place / "merged.json") if place.is_dir() else None
    known = _metadata(place) if document is None else document.get("model")
    if opened is not None:
        known = describe_model(opened)
    if document is None:
        weights = encoder_part(open_weights(place))
    else:
        weights = _base(document, task, Path(base) if base is not None else None, opened)
    config, preprocess = _described(known, place)
    if document is None:
        encoder = load_encoder(config, weights)
    else:
        encoder = load_merged_encoder(place, weights, config, task).eval()
    encoder.preprocess = partial(prepare, preprocess=preprocess)
    return encoder


def prepare(images: np.ndarray | Tensor | Image | Sequence[Image], preprocess: Preprocess) -> Tensor:
    """Turn images into what an encoder takes.

    Args:
        images: uint8 (n, h, w, 3) or (h, w, 3), an image of Pillow's, or a list of those.
        preprocess: size, mean, standard deviation and interpolation.

    Returns:
        Float32 (n, 3, size, size).

    Raises:
        DataError: values or shapes that are no images.
    """
    if hasattr(images, "convert"):
        images = [images]
    if isinstance(images, (list, tuple)):
        arrays = [np.array(one.convert("RGB") if hasattr(one, "convert") else one) for one in images]
        if not arrays:
            raise DataError("There are no images to prepare.")
        return torch.cat([prepare(array, preprocess) for array in arrays])
    tensor = torch.as_tensor(images)
    tensor = tensor[None] if tensor.ndim == 3 else tensor
    if tensor.dtype != torch.uint8 or tensor.ndim != 4 or tensor.shape[-1] != 3 or 0 in tensor.shape[1:]:
        raise DataError(
            f"Images are {tensor.dtype} of shape {tuple(tensor.shape)}; "
            "uint8 of shape (n, height, width, 3) is expected."
        )
    return to_tensor(tensor, preprocess)


def _place(path: Path) -> Path:
    """Return the file of a static merge, or the folder of one by task or by image; a run's folder leads there too."""
    if not path.is_dir():
        return path
    for found in (path / "merged.safetensors", path / "merged"):
        if found.exists():
            return found
    if (path / "merged.json").is_file():
        return path
    raise CheckpointError(f"{path} holds no merged model: neither merged.safetensors nor merged.json is there.")


def _document(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_DOCUMENT_BYTES:
            raise CheckpointError(f"{path.name} is too large to describe a merged model.")
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}.") from error
    if not isinstance(document, dict) or not all(isinstance(document.get(name), str) for name in ("kind", "method")):
        raise CheckpointError(f"{path} does not describe a merged model: it names no kind and method.")
    tasks = document.setdefault("tasks", [])
    if not isinstance(tasks, list) or not all(isinstance(task, str) for task in tasks):
        raise CheckpointError(f"{path} does not describe a merged model: it lists no tasks.")
    return document


def _base(document: Mapping[str, Any], task: str | None, base: Path | None, zoo: Zoo | None) -> Weights:
    """Return the base that a merged model is rebuilt from."""
    if task is None and document.get("kind") != "per_sample":
        raise CheckpointError(
            f"This merged model has other weights for every task; give `task`, one of {', '.join(document['tasks'])}."
        )
    if base is None and zoo is None:
        raise CheckpointError("This merged model is rebuilt from its base; give `base`, the base's weights file.")
    file = base if base is not None else zoo.weights_path("base")
    weights = encoder_part(open_weights(file))
    expected = document.get("base")
    if expected is not None and _sha256(file) != expected:
        raise CheckpointError(f"{file.name} is not the base of this merged model: its content differs.")
    return weights


def _metadata(path: Path) -> Any:
    try:
        return json.loads(getattr(open_weights(path), "metadata", {}).get(METADATA_KEY, "null"))
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"The header of {path.name} describes no model: {error}.") from error


def _described(known: Any, place: Path) -> tuple[dict[str, Any], Preprocess]:
    if not isinstance(known, dict) or not isinstance(known.get("architecture"), dict):
        raise CheckpointError(
            f"{place.name} does not say which architecture its weights are of (only what a run leaves behind does). "
            "Give `zoo`, a zoo with the same backbone."
        )
    if known.get("format") != FORMAT:
        raise CheckpointError(f"{place.name} has format {known.get('format')}; {FORMAT} is read.")
    if "model_type" in known["architecture"]:
        raise CheckpointError(
            f"{place.name} is of a text model, which is loaded by transformers: write it with `export RUN --format hf` "
            "and load that folder with AutoModel."
        )
    try:
        return known["architecture"], Preprocess.model_validate(known.get("preprocess"))
    except ValidationError as error:
        raise CheckpointError(
            f"The preprocessing in {place.name} cannot be used: {explain(error, Preprocess)}"
        ) from error


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
