"""Images: open_clip's vision towers, pixels, and shifts as another camera would give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...layouts import OPEN_CLIP, Layout
from ...manifest import Manifest, Task
from ...preparation import Preprocess
from ..images import config as clip_config
from ..images.brought import ImageTask, find_tasks, open_brought
from ..images.data import ImageData, open_task
from ..modality import FLOAT, TowerSize

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ...catalog.fine_tuning import Augmentation
    from ..images.readers.source import Source

COPIES = 6  # of a block's widest activation that are alive at once


class ImageModality:
    """uint8 images (n, h, w, 3), prepared (n, 3, size, size), through vision towers."""

    name, one, many = "image", "image", "images"
    layout = OPEN_CLIP
    preparation = Preprocess
    shown = "picture"
    shifts: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "usual": ("noise", "blur", "contrast", "negative"),
        "corruptions": (
            "motion_blur",
            "impulse_noise",
            "gaussian_noise",
            "pixelate",
            "spatter",
            "low_contrast",
            "jpeg",
        ),
    }
    augmentations = ("shift", "none", "crop", "shift_flip", "crop_flip")
    drawn: ClassVar[Mapping[str, str]] = {
        "usual": "Noise, blur, contrast, negatives",
        "corruptions": "Seven corruptions",
    }
    shifted_by = "noise, blur, low contrast, negatives, or seven corruptions of papers on merging"
    parts = ""
    graded = False
    padded = False
    facts = ("architecture", "quick_gelu", "preprocess")
    exporter = surveyor = ""
    tokenizers = ()
    examples = ("tanganke/eurosat", "/data/flowers.zip")
    suspects = "architecture, activation, preprocessing, head and the order of classes"
    worded = True
    files = (".zip", ".npz", ".parquet")
    forms = "A .zip of class folders, .parquet or .npz, one a task; named like the task, it is recognised."

    def reads(self, config: Mapping[str, Any]) -> bool:
        """Tell whether a config is one of open_clip's."""
        return "model_type" not in config

    def claims(self, config: Mapping[str, Any]) -> bool:
        """Tell whether a published config has an image encoder."""
        return "vision_config" in config or "vision_cfg" in config

    def answers(self, manifest: Manifest) -> bool:
        """Return False: image encoders give features."""
        return False

    def assumed(self, manifest: Manifest) -> str:
        """Return a warning where a zoo does not say how its images are prepared."""
        if manifest.backbone.preprocess is not None:
            return ""
        return (
            "zoo.yaml states no `preprocess`, so OpenAI's mean and standard deviation are taken. State it; where "
            "images were prepared otherwise, accuracies are far too low without any other sign."
        )

    def published_bytes(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """Return the bytes of a CLIP with its text side, and of its vision tower."""
        tower = clip_config.tower_size(config)
        return (tower.bytes + FLOAT * clip_config.text_parameters(config), tower.bytes) if tower else (0, 0)

    def import_changes(self, manifest: Manifest) -> Mapping[str, Any]:
        """Return how images are prepared: a description that does not say means OpenAI's way."""
        return {"preprocess": manifest.backbone.preprocess or "openai"}

    def architecture(self, folder: Path, manifest: Manifest) -> dict[str, Any]:
        """Return the open_clip model config of a zoo's backbone."""
        return clip_config.architecture(folder, manifest)

    def preprocessing(self, folder: Path, manifest: Manifest) -> Preprocess:
        """Return the zoo's own preprocessing, else OpenAI CLIP's at the architecture's image size."""
        return clip_config.preprocessing(folder, manifest)

    def misread(self, own: Preprocess, theirs: Preprocess) -> str:
        """Return nothing: a picture stays the same one."""
        return ""

    def extent_in_words(self, preparation: Preprocess) -> str:
        """Return the side of images in words."""
        return f"visual tensors that fit the architecture, images of {preparation.size} px"

    def width(self, config: Mapping[str, Any]) -> int:
        """Return the dimensions of image embeddings."""
        return config["embed_dim"]

    def shape(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the dimensions of features and of tokens, and the blocks."""
        vision = config["vision_cfg"]
        return {"d": config.get("embed_dim"), "w": vision.get("width"), "blocks": vision.get("layers")}

    def head_width(self, config: Mapping[str, Any]) -> int:
        """Return the channels in a head of attention: 64 unless stated."""
        return config["vision_cfg"].get("head_width", 64)

    def layout_of(self, config: Mapping[str, Any]) -> Layout:
        """Return how an encoder's tensors are named."""
        return OPEN_CLIP

    def size(self, config: Mapping[str, Any]) -> TowerSize | None:
        """Count parameters and work of a vision transformer; None for towers of another kind."""
        return clip_config.tower_size(config)

    def outline(self, config: Mapping[str, Any]) -> nn.Module:
        """Return a vision tower on the meta device."""
        from ..images.tower import outline

        return outline(config)

    def prepared(self, samples: Any, preparation: Preprocess) -> Tensor:
        """Resize and crop uint8 images (n, h, w, 3) to (n, 3, size, size)."""
        from ..images.tower import resized

        return resized(samples, preparation)

    def finished(self, prepared: Tensor, preparation: Preprocess) -> Tensor:
        """Normalise uint8 pixels (n, 3, size, size) to float32."""
        from ..images.tower import normalised

        return normalised(prepared, preparation)

    def features(self, encoder: nn.Module, finished: Tensor) -> Tensor:
        """Return the tower's features; its last block computes nothing but the token that is read."""
        from ..images.tower import features

        return features(encoder, finished)

    def samples(self, prepared: Tensor) -> np.ndarray:
        """Turn uint8 pixels (n, 3, h, w) back into images (n, h, w, 3)."""
        return prepared.permute(0, 2, 3, 1).numpy()

    def shifted(self, prepared: Tensor, kind: str, task: str, seed: int, preparation: Preprocess) -> Tensor:
        """Shift uint8 pixels (n, 3, h, w)."""
        from ..images.shifts import shift

        return shift(prepared, kind, task, seed)

    def augmented(self, samples: Tensor, kind: Augmentation, chance: np.random.Generator) -> Tensor:
        """Move, crop or mirror normalised pixels (n, 3, size, size)."""
        from ..images.augment import augment

        return augment(samples, kind, chance)

    def occluded(self, prepared: Tensor, preparation: Preprocess) -> tuple[np.ndarray, Tensor]:
        """Return nothing hidden: images have no parts that somebody named."""
        return np.arange(0), prepared[None][:0]

    def blank(self, config: Mapping[str, Any], count: int) -> tuple[np.ndarray, Preprocess]:
        """Return black images of the architecture's size."""
        size = config["vision_cfg"]["image_size"]
        size = size if isinstance(size, int) else max(size)
        grey = (0.5, 0.5, 0.5)
        return np.zeros((count, size, size, 3), np.uint8), Preprocess(size=size, mean=grey, std=grey)

    def bytes_each(self, encoder: nn.Module, extent: int) -> int:
        """Estimate the bytes that one image takes in float32 at the widest place of a vision transformer."""
        places = getattr(encoder, "positional_embedding", None)
        widest = max((tensor.shape[0] for tensor in encoder.parameters() if tensor.ndim == 2), default=4096)
        tokens = places.shape[0] if places is not None and places.ndim == 2 else (extent // 8) ** 2
        return FLOAT * (COPIES * tokens * widest + 3 * extent**2)

    def open_task(self, folder: Path, task: Task, preparation: Callable[[], Any] | None = None) -> ImageData:
        """Open a task's images."""
        return open_task(folder, task, preparation)

    def find_brought(self, place: Path) -> tuple[list[Path], list[str]]:
        """Return what holds one task's images each, and names of folders without images."""
        found, left = find_tasks(place)
        return [task.path for task in found], left

    def find_tasks(self, place: Path) -> tuple[list[ImageTask], list[str]]:
        """Return the tasks of which a place holds images, and names of folders without images."""
        return find_tasks(place)

    def set_aside(self, task: ImageTask, zoo: Path, *, share: float, seed: int, link: bool) -> str:
        """Bring images with a share of them to test on."""
        from ..images.set_aside import set_aside

        return set_aside(task, zoo, share=share, seed=seed, link=link)

    def open_brought(self, path: Path, name: str) -> Source:
        """Open the images that somebody brings for a task."""
        return open_brought(path, name).source
