"""A zoo that is made in a fraction of a second: random weights, made images, the real format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import yaml
from open_clip.model import CLIP
from safetensors.torch import load_file, save_file

from engine.pipeline.run.encoding import encoder_of
from engine.zoo.encoders.backbone import to_tensor
from engine.zoo.folder import Zoo

CONFIG = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 16, "patch_size": 8, "width": 32, "layers": 2, "head_width": 16, "mlp_ratio": 2.0},
    "text_cfg": {"context_length": 4, "vocab_size": 8, "width": 16, "heads": 2, "layers": 1},
    "quick_gelu": False,
}
CLASSES = ("circle", "square", "star")
EXPERTS = ("alpha", "beta", "gamma")


def make_zoo(folder: Path, *, experts: tuple[str, ...] = EXPERTS, images: int = 24, adapt: bool = True) -> Path:
    """Write a zoo of small random models and images; one extra task is out of domain.

    Each class is a constant colour plus noise, so that a linear map could tell them apart.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "experts").mkdir(exist_ok=True)
    (folder / "data").mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    base = {name: tensor.clone() for name, tensor in CLIP(**CONFIG).state_dict().items() if name.startswith("visual.")}
    save_file(base, folder / "base.safetensors")
    for name in experts:
        moved = {key: value + 0.02 * torch.randn(value.shape, generator=generator) for key, value in base.items()}
        save_file(moved, folder / "experts" / f"{name}.safetensors")
    tasks = [*experts, "outside"]
    heads = {name: torch.nn.functional.normalize(torch.randn(3, 16, generator=generator), dim=1) for name in tasks}
    save_file({**heads, "logit_scale": torch.tensor(2.0)}, folder / "heads.safetensors")
    for number, name in enumerate(tasks):
        write_task(folder / "data" / f"{name}.npz", number, images, adapt=adapt and name != "outside")
    write_manifest(folder, experts, tasks)
    return folder


def write_task(path: Path, seed: int, images: int, *, adapt: bool = True) -> None:
    """Write one task's images: uint8 (n, 16, 16, 3) and labels."""
    random = np.random.default_rng(seed)
    colours = random.integers(40, 216, size=(3, 3))

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(count) % 3
        noise = random.integers(-40, 40, size=(count, 16, 16, 3))
        return np.clip(colours[labels][:, None, None] + noise, 0, 255).astype(np.uint8), labels

    test_x, test_y = draw(images)
    val_x, val_y = draw(12)
    arrays = {"test_x": test_x, "test_y": test_y, "val_x": val_x, "val_y": val_y}
    if adapt:
        arrays["adapt_x"] = draw(images)[0]
    np.savez_compressed(path, **arrays)


def write_manifest(folder: Path, experts: tuple[str, ...], tasks: list[str], **changes: object) -> None:
    """Write zoo.yaml."""
    manifest = {
        "format": 1,
        "name": "tiny",
        "title": "Three made tasks",
        "backbone": {
            "architecture": "config.json",
            "weights": "base.safetensors",
            "quick_gelu": False,
            "preprocess": {"size": 16, "mean": [0.5, 0.5, 0.5], "std": [0.3, 0.3, 0.3]},
        },
        "experts": [{"name": n, "task": n, "weights": f"experts/{n}.safetensors"} for n in experts],
        "tasks": [
            {
                "name": n,
                "domain": "out" if n == "outside" else "in",
                "data": f"data/{n}.npz",
                "classes": list(CLASSES),
                "templates": ["a picture of a {}."],
            }
            for n in tasks
        ],
        "heads": "heads.safetensors",
        **changes,
    }
    (folder / "zoo.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))


def scattered(folder: Path) -> Path:
    """Turn a zoo's heads away from the base's mean features: answers differ from image to image and model to model."""
    zoo, heads = Zoo.open(str(folder)), load_file(folder / "heads.safetensors")
    for task, data in zoo.data.items():
        with torch.no_grad():
            features = encoder_of(zoo, "pretrained")(to_tensor(data.samples("test"), zoo.preprocess()))
        mean = torch.nn.functional.normalize(features.mean(0), dim=0)
        heads[task] = torch.nn.functional.normalize(heads[task] - heads[task] @ mean[:, None] * mean, dim=1)
    save_file(heads, folder / "heads.safetensors")
    return folder
