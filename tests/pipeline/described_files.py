"""The files that a description names: a base and two experts in their publishers' forms, and images in shards."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from open_clip.model import CLIP
from PIL import Image
from safetensors.torch import save_file

from engine.weights import Memory
from engine.weights.huggingface import ToHuggingFace, huggingface_config

CONFIG = {
    "embed_dim": 16,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 16, "patch_size": 8, "width": 64, "layers": 1, "head_width": 64, "mlp_ratio": 4.0},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 1, "layers": 1},
}
TASKS = ("mnist", "svhn")


def write_files(models: Path, data: Path) -> None:
    torch.manual_seed(0)
    base = {name: value.clone() for name, value in CLIP(**CONFIG).state_dict().items()}
    (models / "own" / "base").mkdir(parents=True)
    save_file(base, models / "own" / "base" / "open_clip_model.safetensors")
    for number, name in enumerate(TASKS):
        torch.manual_seed(number + 1)
        visual = {n: v + 0.01 * torch.randn_like(v) for n, v in base.items() if n.startswith("visual.")}
        view = ToHuggingFace(Memory(visual))
        kept = {n: view.tensor(n) for n in view.names if n != "visual_projection.weight"}
        folder = models / "own" / f"expert_{name}"
        folder.mkdir(parents=True)
        save_file(kept, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(huggingface_config(CONFIG, 256)))
        write_images(data / "own" / name / "data", number)


def write_images(folder: Path, seed: int) -> None:
    """Two shards of the test split and one of another, in the hub's image layout."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)

    def image() -> dict:
        stream = io.BytesIO()
        Image.fromarray(random.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(stream, "PNG")
        return {"bytes": stream.getvalue(), "path": None}

    for name, count in (("test-00000-of-00002", 10), ("test-00001-of-00002", 10), ("train-00000-of-00001", 5)):
        table = pa.table({"image": [image() for _ in range(count)], "label": [i % 10 for i in range(count)]})
        pq.write_table(table, folder / f"{name}.parquet")
