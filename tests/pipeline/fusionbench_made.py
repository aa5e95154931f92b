"""Small CLIP image encoders, pools and methods written for FusionBench, and what FusionBench 0.2.33 makes of these.

``python -m tests.pipeline.fusionbench_made`` writes ``fusionbench_values.safetensors.xz``. It needs FusionBench 0.2.33,
which takes from transformers what version 5 no longer has, so it lives in an environment of its own: transformers 4.57,
datasets 4.0, and Python 3.12 or ``typing.override`` from typing_extensions. ``write_pool`` and ``write_method`` write
the files, Hydra makes FusionBench's own classes from them, and the repositories that the pool names lie in a local
cache of the hub with the made models.
"""

import json
import os
import tempfile
import typing
from pathlib import Path

import numpy as np
import typing_extensions
import yaml
from safetensors.numpy import save_file

from engine.manifest import Manifest
from engine.pipeline.foreign.fusionbench import write_method
from engine.pipeline.foreign.fusionbench_pool import write_pool
from engine.recipe import parse_recipe
from tests.packed import pack
from tests.pipeline.mergekit_made import in_huggingface

VALUES = Path(__file__).with_name("fusionbench_values.safetensors.xz")
VERSION = "0.2.33"
TASKS = ("mnist", "dtd", "stanford-cars")
BASE = "openai/clip-vit-base-patch32"
WIDTH, BLOCKS, HIDDEN, OUT = 12, 2, 20, 6
CONFIG = {
    "architectures": ["CLIPVisionModelWithProjection"],
    "model_type": "clip_vision_model",
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
    "projection_dim": OUT,
}


DARE = {"transforms": [{"method": "dare", "params": {"drop_rate": 0.0}}]}  # what is dropped depends on who draws
LACKING = -WIDTH * OUT  # parameters of the projection, which FusionBench's encoders do not have


def shapes():
    """Shapes of an image encoder's tensors by open_clip's names."""
    found = {
        "class_embedding": (WIDTH,),
        "positional_embedding": (5, WIDTH),
        "proj": (WIDTH, OUT),
        "conv1.weight": (WIDTH, 3, 4, 4),
    }
    found |= {f"{name}.{kind}": (WIDTH,) for name in ("ln_pre", "ln_post") for kind in ("weight", "bias")}
    inside = {"attn.in_proj_weight": (3 * WIDTH, WIDTH), "attn.in_proj_bias": (3 * WIDTH,)}
    inside |= {"attn.out_proj.weight": (WIDTH, WIDTH), "attn.out_proj.bias": (WIDTH,)}
    inside |= {"mlp.c_fc.weight": (HIDDEN, WIDTH), "mlp.c_fc.bias": (HIDDEN,)}
    inside |= {"mlp.c_proj.weight": (WIDTH, HIDDEN), "mlp.c_proj.bias": (WIDTH,)}
    inside |= {f"{name}.{kind}": (WIDTH,) for name in ("ln_1", "ln_2") for kind in ("weight", "bias")}
    for block in range(BLOCKS):
        found |= {f"transformer.resblocks.{block}.{name}": shape for name, shape in inside.items()}
    return {f"visual.{name}": shape for name, shape in found.items()}


def encoder(model):
    """A model's tensors: base or task; as with FusionBench's own experts, the projection is the base's."""
    base, moved = np.random.RandomState(0), np.random.RandomState(1 + ("base", *TASKS).index(model))
    found = {}
    for name, shape in shapes().items():
        value = base.uniform(-0.5, 0.5, shape)
        if model != "base" and name != "visual.proj":
            value = value + moved.uniform(-0.1, 0.1, shape)
        found[name] = value.astype(np.float32)
    return found


def manifest():
    """The zoo that the pool is written from."""
    experts = [{"name": task, "task": task, "weights": f"hf:tanganke/clip-vit-base-patch32_{task}"} for task in TASKS]
    return Manifest.model_validate(
        {
            "format": 1,
            "name": "made",
            "title": "Made",
            "backbone": {"architecture": "ViT-B-32", "weights": f"hf:{BASE}", "quick_gelu": True},
            "experts": experts,
            "tasks": [{"name": task, "domain": "in"} for task in TASKS],
        }
    )


def merge(method, **params):
    """A recipe's merge."""
    return {"merge": {"method": method, "params": params}}


def apart(method, **params):
    """A merge of tensors as Hugging Face names them: query, key and value apart, as FusionBench has them."""
    return {"merge": {"method": "by_layer", "params": {"method": method, "params": params, "naming": "huggingface"}}}


RECIPES = {
    "simple_average": merge("weight_average"),
    "task_arithmetic": merge("task_arithmetic", scaling=0.4),
    "weighted_average": {
        "experts": [{"name": name, "weight": weight} for name, weight in zip(TASKS, (0.5, 0.2, 0.3), strict=True)],
        **merge("task_arithmetic", scaling=1.0),
    },
    "dare_task_arithmetic": {**DARE, **merge("task_arithmetic", scaling=0.4)},
    "dare_simple_average": {**DARE, **merge("weight_average")},
    "dare_ties": {**DARE, **merge("ties", density=0.3, scaling=0.5, frozen_parameters=LACKING)},
    "ties_sum": merge("ties", density=0.2, scaling=0.3, frozen_parameters=LACKING),
    "ties_mean": merge("ties", density=0.35, scaling=1.1, merge="mean", frozen_parameters=LACKING),
    "ties_max": merge("ties", density=0.5, scaling=0.7, merge="max", frozen_parameters=LACKING),
    "model_stock": apart("model_stock", average="angles", clamp=False),
    "slerp": {"experts": ["mnist", "dtd"], **apart("slerp", t=0.3, on="weights")},
    "iso_c": apart("iso_c", scaling=1.3),
    "iso_cts": apart("iso_cts", scaling=1.2, common=0.7),
    "tsv_m": apart("tsv_m", scaling=0.9),
    "wudi": apart("wudi", steps=50, matrices="all"),
    "doge": apart("doge", scaling=0.5, density=0.4, basis_divisor=4),
}


def written(recipe):
    """The method file of a recipe."""
    return write_method(parse_recipe({"zoo": "made", **recipe}))


def pool_for(title, pool):
    """The pool that a recipe is run on: two experts and nothing else for SLERP."""
    document = yaml.safe_load(pool)
    if title == "slerp":
        document["models"] = {name: document["models"][name] for name in RECIPES[title]["experts"]}
    return yaml.safe_dump(document, sort_keys=False)


def write_hub(folder):
    """Write every model as a repository of the hub's local cache."""
    for repository, model in {BASE: "base", **{f"tanganke/clip-vit-base-patch32_{t}": t for t in TASKS}}.items():
        place = folder / f"models--{repository.replace('/', '--')}"
        (place / "refs").mkdir(parents=True)
        (place / "refs" / "main").write_text("0" * 40)
        snapshot = place / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        save_file(in_huggingface(encoder(model)), snapshot / "model.safetensors", metadata={"format": "pt"})
        (snapshot / "config.json").write_text(json.dumps(CONFIG))


def merged_by_fusionbench(pool, method):
    """Return the tensors that FusionBench makes of a pool and a method, both YAML."""
    from fusion_bench.utils import instantiate
    from omegaconf import OmegaConf

    models = instantiate(OmegaConf.create(yaml.safe_load(pool)))
    algorithm = instantiate(OmegaConf.create(yaml.safe_load(method)))
    made = algorithm.run(models).state_dict()
    return {name: value.detach().float().numpy() for name, value in made.items()}


def write_values():
    """Run FusionBench on every recipe and keep what it makes, and the texts that it was given."""
    from importlib.metadata import version

    if version("fusion_bench") != VERSION:
        raise SystemExit(f"FusionBench {VERSION} is needed; {version('fusion_bench')} is here.")
    values, texts = {}, {"pool": write_pool(manifest())}
    for title, recipe in RECIPES.items():
        texts[title] = written(recipe)
        made = merged_by_fusionbench(pool_for(title, texts["pool"]), texts[title])
        values |= {f"{title}/{key}": np.ascontiguousarray(value, np.float32) for key, value in made.items()}
    pack(VALUES, values, {"made_with": f"FusionBench {VERSION}", "texts": json.dumps(texts)})


if __name__ == "__main__":
    if not hasattr(typing, "override"):
        typing.override = typing_extensions.override
    with tempfile.TemporaryDirectory() as name:
        write_hub(Path(name))
        os.environ |= {"HF_HUB_CACHE": name, "HF_HUB_OFFLINE": "1"}  # before its libraries are imported
        write_values()
