"""The bundled zoo's models as other programs write them: transformers, peft, open_clip and torch, nothing of ours."""

from __future__ import annotations

import atexit
import io
import json
import shutil
import sys
import tempfile
import types
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
import yaml
from open_clip.model import CLIP
from open_clip.push_to_hf_hub import save_for_hf
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from torchvision import transforms
from torchvision.transforms import InterpolationMode
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPVisionModel, CLIPVisionModelWithProjection

ZOO = Path(__file__).resolve().parents[1] / "assets" / "zoos" / "mini8"
CONFIG = json.loads((ZOO / "config.json").read_text())
MEAN, STD = (0.5, 0.5, 0.5), (0.27, 0.27, 0.27)
TASKS = ("digits", "signs", "textures")
SCORED = 200  # test images of a task
WHERE = "src.modeling"


@cache
def clip(model: str = "base") -> CLIP:
    """open_clip's own model with the base's text side and the image encoder of the base or an expert.

    Of `digits:8` the matrices of the blocks move along 8 directions, as an adapter of rank 8 moves them; the rest is
    the base's.
    """
    state = {name: value.float() for name, value in load_file(ZOO / "base.safetensors").items()}
    expert, _, rank = model.partition(":")
    if expert != "base":
        tuned = {n: v.float() for n, v in load_file(ZOO / "experts" / f"{expert}.safetensors").items()}
        state |= low_rank(state, tuned, int(rank)) if rank else tuned
    found = CLIP(**CONFIG).eval()
    found.load_state_dict(state)
    found.visual.image_mean, found.visual.image_std = MEAN, STD
    found.visual.preprocess_cfg = {"size": 32, "mean": MEAN, "std": STD, "interpolation": "bicubic"}
    return found


def low_rank(base: dict, tuned: dict, rank: int) -> dict[str, torch.Tensor]:
    """The base's matrices moved by the largest directions of an expert's; query, key and value each by their own."""
    found = {}
    for name in tuned:
        if name.endswith(("in_proj_weight", "out_proj.weight", "c_fc.weight", "c_proj.weight")):
            moves = (tuned[name] - base[name]).chunk(3 if "in_proj" in name else 1)
            split = [torch.linalg.svd(move, full_matrices=False) for move in moves]
            kept = [(left[:, :rank] * values[:rank]) @ right[:rank] for left, values, right in split]
            found[name] = base[name] + torch.cat(kept)
    return found


@cache
def entry(task: str) -> dict:
    """Return what zoo.yaml says of a task."""
    return next(e for e in yaml.safe_load((ZOO / "zoo.yaml").read_text())["tasks"] if e["name"] == task)


def classes(task: str) -> tuple[str, ...]:
    """Class names in head order."""
    return tuple(entry(task)["classes"])


def rows(task: str) -> torch.Tensor:
    """A head's rows, of unit norm."""
    return nn.functional.normalize(load_file(ZOO / "heads.safetensors")[task].float(), dim=1)


@cache
def data(task: str) -> Path:
    """A task's images as an npz file, read from the zoo's parquet shards with pyarrow and Pillow alone."""
    arrays = {}
    for shard in sorted((ZOO / "data" / task).glob("*.parquet")):
        table, split = pq.read_table(shard), shard.name.split("-")[0]
        encoded = table.column("image").combine_chunks().field("bytes").to_pylist()
        arrays[f"{split}_x"] = np.stack([np.asarray(Image.open(io.BytesIO(image))) for image in encoded])
        if "label" in table.column_names:
            arrays[f"{split}_y"] = table.column("label").to_numpy()
    folder = Path(tempfile.mkdtemp(prefix="foreign-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    np.savez(folder / f"{task}.npz", **arrays)
    return folder / f"{task}.npz"


def pixels(images: np.ndarray) -> torch.Tensor:
    """Prepare uint8 images (n, 32, 32[, 3]) as the models were trained with."""
    images = np.repeat(images[..., None], 3, axis=-1) if images.ndim == 3 else images
    return (torch.tensor(images).permute(0, 3, 1, 2).float() / 255 - MEAN[0]) / STD[0]


@torch.no_grad()
def accuracy(task: str, model: str) -> float:
    """Percent of a task's first test images that a model recognises, computed with open_clip and numpy alone."""
    with np.load(data(task)) as arrays:
        images, labels = arrays["test_x"][:SCORED], arrays["test_y"][:SCORED]
    guesses = (clip(model).visual(pixels(images)) @ rows(task).T).argmax(1).numpy()
    return 100 * float((guesses == labels).mean())


# -- transformers


def _copy_block(theirs: nn.Module, ours: nn.Module) -> None:
    width = ours.attn.out_proj.weight.shape[0]
    for index, part in enumerate((theirs.self_attn.q_proj, theirs.self_attn.k_proj, theirs.self_attn.v_proj)):
        part.weight.copy_(ours.attn.in_proj_weight[index * width : (index + 1) * width])
        part.bias.copy_(ours.attn.in_proj_bias[index * width : (index + 1) * width])
    pairs = [(theirs.self_attn.out_proj, ours.attn.out_proj), (theirs.layer_norm1, ours.ln_1)]
    pairs += [(theirs.layer_norm2, ours.ln_2), (theirs.mlp.fc1, ours.mlp.c_fc), (theirs.mlp.fc2, ours.mlp.c_proj)]
    for own, other in pairs:
        own.weight.copy_(other.weight)
        own.bias.copy_(other.bias)


@cache
@torch.no_grad()
def hugging_face(model: str = "base") -> CLIPModel:
    """The same as a complete CLIPModel; a test compares what the two compute."""
    ours, vision, text = clip(model), CONFIG["vision_cfg"], CONFIG["text_cfg"]
    found = CLIPModel(
        CLIPConfig(
            projection_dim=CONFIG["embed_dim"],
            vision_config={
                "hidden_size": vision["width"],
                "intermediate_size": int(vision["width"] * vision["mlp_ratio"]),
                "num_hidden_layers": vision["layers"],
                "num_attention_heads": vision["width"] // vision["head_width"],
                "image_size": vision["image_size"],
                "patch_size": vision["patch_size"],
                "hidden_act": "gelu",
                "projection_dim": CONFIG["embed_dim"],
            },
            text_config={
                "hidden_size": text["width"],
                "intermediate_size": 4 * text["width"],
                "num_hidden_layers": text["layers"],
                "num_attention_heads": text["heads"],
                "vocab_size": text["vocab_size"],
                "max_position_embeddings": text["context_length"],
                "hidden_act": "gelu",
                "projection_dim": CONFIG["embed_dim"],
                "eos_token_id": text["vocab_size"] - 1,
                "bos_token_id": 0,
                "pad_token_id": 0,
            },
        )
    ).eval()
    eye, words = found.vision_model, found.text_model
    eye.embeddings.class_embedding.copy_(ours.visual.class_embedding)
    eye.embeddings.patch_embedding.weight.copy_(ours.visual.conv1.weight)
    eye.embeddings.position_embedding.weight.copy_(ours.visual.positional_embedding)
    for own, other in ((eye.pre_layrnorm, ours.visual.ln_pre), (eye.post_layernorm, ours.visual.ln_post)):
        own.load_state_dict(other.state_dict())
    for own, other in zip(eye.encoder.layers, ours.visual.transformer.resblocks, strict=True):
        _copy_block(own, other)
    words.embeddings.token_embedding.weight.copy_(ours.token_embedding.weight)
    words.embeddings.position_embedding.weight.copy_(ours.positional_embedding)
    words.final_layer_norm.load_state_dict(ours.ln_final.state_dict())
    for own, other in zip(words.encoder.layers, ours.transformer.resblocks, strict=True):
        _copy_block(own, other)
    found.visual_projection.weight.copy_(ours.visual.proj.T)
    found.text_projection.weight.copy_(ours.text_projection.T)
    found.logit_scale.copy_(ours.logit_scale)
    return found


def vision(model: str, *, projection: bool = True) -> nn.Module:
    """The image side as transformers has it."""
    whole = hugging_face(model)
    kind = CLIPVisionModelWithProjection if projection else CLIPVisionModel
    found = kind(whole.config.vision_config).eval()
    missing = found.load_state_dict(whole.state_dict(), strict=False).missing_keys
    if missing:  # newer versions leave the prefix out where there is no projection
        bare = {name.removeprefix("vision_model."): value for name, value in whole.state_dict().items()}
        found.load_state_dict({name: bare[name.removeprefix("vision_model.")] for name in found.state_dict()})
    return found


def processor() -> CLIPImageProcessor:
    """Its preprocessing."""
    size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    return CLIPImageProcessor(image_mean=list(MEAN), image_std=list(STD), **size)


def write_hf(folder: Path, model: str, *, form: str = "projection", prepared: bool = True) -> Path:
    """A folder of transformers: whole, projection, bare (no projection), shards or bin."""
    found = hugging_face(model) if form == "whole" else vision(model, projection=form != "bare")
    found.save_pretrained(folder, max_shard_size="400KB" if form == "shards" else "1GB")
    if form == "bin":
        (folder / "model.safetensors").unlink()
        torch.save(found.state_dict(), folder / "pytorch_model.bin")
    if prepared:
        processor().save_pretrained(folder)
    return folder


# -- open_clip and torch


def write_hub(folder: Path, model: str) -> Path:
    """A folder as open_clip pushes it to the hub."""
    tokenizer = types.SimpleNamespace(save_pretrained=lambda place: None)
    save_for_hf(clip(model), tokenizer, CONFIG, folder, safe_serialization=True)
    return folder


class ImageEncoder(nn.Module):
    """As Task Arithmetic's public pickles have it."""

    def __init__(self, model: nn.Module, preprocess: object) -> None:
        super().__init__()
        self.model, self.train_preprocess, self.val_preprocess = model, preprocess, preprocess
        self.cache_dir = "~/.cache"


class ClassificationHead(nn.Linear):
    """Unit rows times the logit scale."""

    def __init__(self, weight: torch.Tensor, scale: float) -> None:
        super().__init__(weight.shape[1], weight.shape[0])
        self.normalize = True
        self.weight, self.bias = nn.Parameter(weight * scale), nn.Parameter(torch.zeros(len(weight)))


def _convert_to_rgb(image):
    return image.convert("RGB")


@contextmanager
def foreign_names():
    """The classes under their public names while a file is written."""
    kinds = {ImageEncoder: WHERE, ClassificationHead: WHERE, _convert_to_rgb: "open_clip.transform"}
    modules = {name: sys.modules.get(name) for name in ("src", WHERE, "open_clip.transform")}
    own = {kind: kind.__module__ for kind in kinds}
    for name in modules:
        sys.modules[name] = types.ModuleType(name)
    for kind, where in kinds.items():
        kind.__module__ = where
        setattr(sys.modules[where], kind.__name__, kind)
    try:
        yield
    finally:
        for kind, where in own.items():
            kind.__module__ = where
        for name, module in modules.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module


def prepared(mean=MEAN, std=STD) -> transforms.Compose:
    """open_clip's evaluation transforms, as its version 2.0 put them together."""
    steps = [transforms.Resize(32, interpolation=InterpolationMode.BICUBIC), transforms.CenterCrop(32)]
    return transforms.Compose([*steps, _convert_to_rgb, transforms.ToTensor(), transforms.Normalize(mean, std)])


def write_module(path: Path, model: str, *, legacy: bool = False) -> Path:
    """A whole pickled module without its text transformer, preprocessing included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = CLIP(**CONFIG).eval()
    found.load_state_dict(clip(model).state_dict())
    del found.transformer
    with foreign_names():
        torch.save(ImageEncoder(found, prepared()), path, _use_new_zipfile_serialization=not legacy)
    return path


def write_state(path: Path, model: str, *, nested: bool = False) -> Path:
    """A bare state dict of open_clip, or one inside a training checkpoint of its version 2.0."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = clip(model).state_dict()
    if nested:
        state = {"epoch": 3, "name": "run", "state_dict": {f"module.{name}": value for name, value in state.items()}}
    torch.save(state, path)
    return path


def write_tensors(path: Path, model: str) -> Path:
    """The image encoder alone, as safetensors without any metadata."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({n: v.contiguous() for n, v in clip(model).state_dict().items() if n.startswith("visual.")}, path)
    return path


def write_head(path: Path, task: str, scale: float = 20.0) -> Path:
    """A whole pickled classification head."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with foreign_names():
        torch.save(ClassificationHead(rows(task), scale), path)
    return path


def write_folders(folder: Path, task: str, count: int = 500) -> Path:
    """A task's test images as class folders of PNG files."""
    with np.load(data(task)) as arrays:
        images, labels = arrays["test_x"][:count], arrays["test_y"][:count]
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        place = folder / classes(task)[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).convert("RGB").save(place / f"{number:04}.png")
    return folder
