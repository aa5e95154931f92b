"""Facts about a checkpoint from around it: configs, headers, a zoo's manifest, a pickle's own objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import ZooError
from ...manifest import Preprocess, read_manifest
from ...weights.huggingface import vision_config
from ..encoders.architecture import architecture, preprocessing
from ..metadata import read_document
from .preprocess import Unreadable, from_document, from_pickle
from .sources import Source

VISION_SIZES = ("image_size", "layers", "width", "patch_size", "head_width")
SIZE = "hidden_size"  # that every config of a transformer states
DEFAULTS = {"image_size": 224, "layers": 12, "width": 768, "patch_size": 16, "head_width": 64}


@dataclass(frozen=True)
class Stated:
    """The facts that one place states; None for what it leaves open."""

    origin: str  # how people are told of the place
    config: dict[str, Any] | None = None  # open_clip's model config, its defaults written out
    head_width: int | None = None
    quick_gelu: bool | None = None
    preprocess: Preprocess | None = None
    problem: str = ""  # a preprocessing that is stated but cannot be carried out


def read_stated(source: Source, size: int, width: int) -> list[Stated]:
    """Return what is said about a checkpoint, the nearest place first.

    Args:
        source: the checkpoint.
        size: side of the images that its weights take, in pixels.
        width: of its embeddings.

    Raises:
        EngineError: a place describes something that is no CLIP ViT.
    """
    readers: tuple[Callable[[], Iterator[Stated]], ...] = (
        lambda: _header(source, size),
        lambda: _manifest(source),
        lambda: _open_clip(source, size),
        lambda: _hugging_face(source),
        lambda: _preprocessor(source, size),
        lambda: _pickle(source, size, width),
    )
    return [stated for reader in readers for stated in reader()]


def filled(config: dict[str, Any], origin: str) -> dict[str, Any]:
    """Return an open_clip model config with its defaults written out.

    Raises:
        ZooError: it describes no ViT.
    """
    vision = config.get("vision_cfg")
    if not isinstance(vision, dict) or any(
        isinstance(vision.get(name, 1), bool) or not isinstance(vision.get(name, 1), int) or vision.get(name, 1) < 1
        for name in VISION_SIZES
    ):
        raise ZooError(f"{origin} is no open_clip config of a ViT: vision_cfg needs {', '.join(VISION_SIZES[:4])}.")
    return {"quick_gelu": False, **config, "vision_cfg": {**DEFAULTS, **vision}}


def _of_config(origin: str, config: dict[str, Any], preprocess: Preprocess | None = None, problem: str = "") -> Stated:
    return Stated(origin, config, config["vision_cfg"]["head_width"], bool(config["quick_gelu"]), preprocess, problem)


def _header(source: Source, size: int) -> Iterator[Stated]:
    document = read_document(source.weights)
    if isinstance(document.get("architecture"), dict):
        origin = f"the header of {source.files[0].name}"
        yield _of_config(origin, filled(document["architecture"], origin), *_prepared(document, size))


def _manifest(source: Source) -> Iterator[Stated]:
    """Return a base that lies in a zoo of this project."""
    file = source.files[0]
    if not (file.parent / "zoo.yaml").is_file():
        return
    manifest = read_manifest(file.parent)
    if manifest.backbone.weights == file.name:
        config = filled(architecture(file.parent, manifest), "zoo.yaml")
        yield _of_config(f"{file.parent.name}/zoo.yaml", config, preprocessing(file.parent, manifest))


def _open_clip(source: Source, size: int) -> Iterator[Stated]:
    if source.open_clip:
        document, name = source.open_clip
        yield _of_config(name, filled(document.get("model_cfg", document), name), *_prepared(document, size))


def _hugging_face(source: Source) -> Iterator[Stated]:
    if _describes_model(source.config):
        yield _of_config("config.json", vision_config(source.config))


def _describes_model(config: dict[str, Any]) -> bool:
    """Return whether a config.json is transformers' of a model, and not a record of a training or of something else.

    A record states neither; taken for a config, it would be filled up with the sizes and the activation of OpenAI's
    CLIP. A model of another kind says so, and has sizes or a class: it is left to be refused.
    """
    kind = config.get("model_type")
    clip = isinstance(kind, str) and kind.startswith("clip")
    return "vision_config" in config or clip or (kind is not None and ("architectures" in config or SIZE in config))


def _preprocessor(source: Source, size: int) -> Iterator[Stated]:
    if source.preprocessor:
        found, problem = _prepared(source.preprocessor, size)
        yield Stated("preprocessor_config.json", preprocess=found, problem=problem)


def _pickle(source: Source, size: int, width: int) -> Iterator[Stated]:
    pickled = source.pickled
    if pickled is None:
        return
    heads = next(
        (
            value
            for name, value in pickled.settings.items()
            if name.endswith("resblocks.0.attn.num_heads") and "visual" in name and type(value) is int and value > 0
        ),
        None,
    )
    inside = {kind.rsplit(".", 1)[-1] for place, kind in pickled.classes.items() if "visual" in place or not place}
    gelu = "QuickGELU" in inside if inside & {"QuickGELU", "GELU"} else None
    try:
        found, problem = from_pickle(pickled.root, size), ""
    except Unreadable as error:
        found, problem = None, str(error)
    head_width = width // heads if heads and not width % heads else None
    yield Stated("the pickled module", None, head_width, gelu, found, problem)


def _prepared(document: dict[str, Any], size: int) -> tuple[Preprocess | None, str]:
    try:
        return from_document(document, size), ""
    except Unreadable as error:
        return None, str(error)
