"""Checkpoints in the formats that people bring, made here: whole pickled modules, Hugging Face folders, adapters."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from open_clip.model import CLIP
from safetensors.torch import save_file
from torch import Tensor, nn

from engine.weights import Memory
from engine.weights.huggingface import ToHuggingFace
from tests.tiny_zoo import CONFIG

WHERE = "src.modeling"  # the module in which the public pickles say that their classes live


class ImageEncoder(nn.Module):
    """As the public pickles have it: an open_clip model without its text transformer, and its preprocessing."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.train_preprocess = self.val_preprocess = None
        self.cache_dir = "~/.cache"


class ClassificationHead(nn.Linear):
    """Unit rows times the logit scale, no bias to speak of."""

    def __init__(self, weight: Tensor, bias: float = 0.0) -> None:
        super().__init__(weight.shape[1], weight.shape[0])
        self.normalize = True
        self.weight = nn.Parameter(weight.clone())
        self.bias = nn.Parameter(torch.full((weight.shape[0],), bias))


@contextmanager
def foreign_classes() -> Iterator[None]:
    """Make the classes importable under their public names while a file is written, and gone when it is read."""
    names = ("src", WHERE)
    before = {name: sys.modules.get(name) for name in names}
    for name in names:
        sys.modules[name] = types.ModuleType(name)
    for kind in (ImageEncoder, ClassificationHead):
        kind.__module__ = WHERE
        setattr(sys.modules[WHERE], kind.__name__, kind)
    try:
        yield
    finally:
        for kind in (ImageEncoder, ClassificationHead):
            kind.__module__ = __name__
        for name, module in before.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module


def clip(seed: int = 0, quick_gelu: bool = True, config: dict | None = None) -> CLIP:
    """A small CLIP with random weights."""
    torch.manual_seed(seed)
    return CLIP(**{**(config or CONFIG), "quick_gelu": quick_gelu})


def visual_of(model: nn.Module) -> dict[str, Tensor]:
    """Its image encoder's tensors under their canonical names."""
    return {name: value.clone() for name, value in model.state_dict().items() if name.startswith("visual.")}


def moved(tensors: dict[str, Tensor], seed: int, keep: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Fine-tuned, as it were: every tensor but the kept ones moved a little."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value if name in keep else value + 0.02 * torch.randn(value.shape, generator=generator)
        for name, value in tensors.items()
    }


def write_pickle(path: Path, visual: dict[str, Tensor], *, legacy: bool = False, config: dict | None = None) -> Path:
    """A whole pickled image encoder with the text leftovers of the public files."""
    model = clip(config=config)
    model.load_state_dict(visual, strict=False)
    del model.transformer
    path.parent.mkdir(parents=True, exist_ok=True)
    with foreign_classes():
        torch.save(ImageEncoder(model), path, _use_new_zipfile_serialization=not legacy)
    return path


def write_head(path: Path, rows: Tensor, scale: float = 100.0, bias: float = 0.0) -> Path:
    """A whole pickled classification head."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with foreign_classes():
        torch.save(ClassificationHead(nn.functional.normalize(rows, dim=1) * scale, bias), path)
    return path


def hf_config(quick_gelu: bool = True, config: dict | None = None) -> dict:
    """The Hugging Face config of an open_clip architecture, the tiny one by default."""
    config = config or CONFIG
    vision = {"head_width": 64, "mlp_ratio": 4.0, **config["vision_cfg"]}
    return {
        "architectures": ["CLIPVisionModelWithProjection"],
        "model_type": "clip_vision_model",
        "hidden_size": vision["width"],
        "intermediate_size": int(vision["width"] * vision["mlp_ratio"]),
        "num_attention_heads": vision["width"] // vision["head_width"],
        "num_hidden_layers": vision["layers"],
        "image_size": vision["image_size"],
        "patch_size": vision["patch_size"],
        "projection_dim": config["embed_dim"],
        "hidden_act": "quick_gelu" if quick_gelu else "gelu",
        "layer_norm_eps": 1e-5,
    }


def write_hf(
    folder: Path,
    visual: dict[str, Tensor],
    *,
    prefix: bool = True,
    projection: bool = True,
    quick_gelu: bool = True,
    binary: bool = False,
    shards: int = 1,
    config: dict | None = None,
) -> Path:
    """A Hugging Face CLIP vision folder in one of its many forms."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config(quick_gelu, config)))
    view = ToHuggingFace(Memory(visual))
    tensors = {name: view.tensor(name).contiguous() for name in view.names}
    if not projection:
        del tensors["visual_projection.weight"]
    if not prefix:
        tensors = {name.removeprefix("vision_model."): value for name, value in tensors.items()}
    stem, ending, save = (
        ("pytorch_model", "bin", torch.save) if binary else ("model", "safetensors", lambda t, p: save_file(t, p))
    )
    if shards == 1:
        save(tensors, folder / f"{stem}.{ending}")
        return folder
    table = {}
    for number in range(shards):
        name = f"{stem}-{number + 1:05}-of-{shards:05}.{ending}"
        part = {key: tensors[key] for index, key in enumerate(tensors) if index % shards == number}
        save(part, folder / name)
        table |= dict.fromkeys(part, name)
    (folder / f"{stem}.{ending}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": table}))
    return folder


def write_adapter(folder, base, *, modules=("q_proj", "fc1"), prefix="vision_model.", **options):
    """A LoRA adapter, and what merging it must give."""
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "fan_in_fan_out": False, "bias": "none", **options}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    generator, tensors, expected = torch.Generator().manual_seed(5), {}, dict(base)
    width, hidden = 32, 64
    for layer in range(2):
        block = f"visual.transformer.resblocks.{layer}."
        for module, (ours, third, rows, columns) in {
            "q_proj": ("self_attn", 0, width, width),
            "v_proj": ("self_attn", 2, width, width),
            "out_proj": ("self_attn", -1, width, width),
            "fc1": ("mlp", -1, hidden, width),
        }.items():
            if module not in modules:
                continue
            rank = config.get("rank_pattern", {}).get(module, config["r"])
            alpha = config.get("alpha_pattern", {}).get(module, config["lora_alpha"])
            scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
            down = torch.randn(rank, columns, generator=generator)
            up = torch.randn(rows, rank, generator=generator)
            place = f"base_model.model.{prefix}encoder.layers.{layer}.{ours}.{module}"
            tensors |= {f"{place}.lora_A.weight": down, f"{place}.lora_B.weight": up}
            delta = scale * (up.double() @ down.double()).float()
            if third >= 0:
                name = f"{block}attn.in_proj_weight"
                expected[name] = expected[name].clone()
                expected[name].chunk(3)[third].add_(delta)
            else:
                name = f"{block}{'mlp.c_fc' if module == 'fc1' else 'attn.out_proj'}.weight"
                expected[name] = expected[name] + delta
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder, expected
