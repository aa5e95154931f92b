"""Small image encoders made of sines, configurations of mergekit on them, and what mergekit 0.1.4 makes of these.

``python -m tests.pipeline.mergekit_made`` writes ``mergekit_values.safetensors.xz``; it needs mergekit 0.1.4 with
transformers 4.51, in an environment of their own. ``mergekit-pytorch`` merges files with open_clip's names;
``mergekit-yaml``'s planner merges folders with Hugging Face's names, whose architecture it infers. Files of
``mergekit-multi`` are read by mergekit's own code, and that planner makes their merges one after the other.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import yaml
from safetensors.numpy import load_file, save_file

from tests.packed import pack

VALUES = Path(__file__).with_name("mergekit_values.safetensors.xz")
VERSION = "0.1.4"
WIDTH, BLOCKS, HIDDEN, OUT = 8, 3, 16, 6
MODELS = ("base", "alpha", "beta", "gamma")
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


def encoder(model):
    """A model's tensors with open_clip's names: a sine of its own for every tensor, experts moved from the base."""
    shapes = {
        "class_embedding": (WIDTH,),
        "positional_embedding": (5, WIDTH),
        "proj": (WIDTH, OUT),
        "conv1.weight": (WIDTH, 3, 4, 4),
    }
    shapes |= {f"{name}.{kind}": (WIDTH,) for name in ("ln_pre", "ln_post") for kind in ("weight", "bias")}
    for block in range(BLOCKS):
        place = f"transformer.resblocks.{block}."
        shapes |= {f"{place}{name}.{kind}": (WIDTH,) for name in ("ln_1", "ln_2") for kind in ("weight", "bias")}
        shapes |= {place + "attn.in_proj_weight": (3 * WIDTH, WIDTH), place + "attn.in_proj_bias": (3 * WIDTH,)}
        shapes |= {place + "attn.out_proj.weight": (WIDTH, WIDTH), place + "attn.out_proj.bias": (WIDTH,)}
        shapes |= {place + "mlp.c_fc.weight": (HIDDEN, WIDTH), place + "mlp.c_fc.bias": (HIDDEN,)}
        shapes |= {place + "mlp.c_proj.weight": (WIDTH, HIDDEN), place + "mlp.c_proj.bias": (WIDTH,)}
    found = {}
    for number, (name, shape) in enumerate(shapes.items()):
        entries = np.arange(1, 1 + np.prod(shape))
        value = np.sin(0.7 * entries + number)
        if model != "base":
            value = value + 0.3 * np.sin((1.3 + 0.4 * MODELS.index(model)) * entries + 2.1 * number)
        found[f"visual.{name}"] = value.reshape(shape).astype(np.float32)
    return found


def in_huggingface(tensors):
    """The same tensors with Hugging Face's names: query, key and value apart, the projection transposed."""
    top = {
        "class_embedding": "embeddings.class_embedding",
        "positional_embedding": "embeddings.position_embedding.weight",
        "conv1.weight": "embeddings.patch_embedding.weight",
        "ln_pre": "pre_layrnorm",
        "ln_post": "post_layernorm",
    }
    inside = {"attn.out_proj": "self_attn.out_proj", "mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2"}
    inside |= {"ln_1": "layer_norm1", "ln_2": "layer_norm2"}
    found = {}
    for name, value in tensors.items():
        bare = name.removeprefix("visual.")
        if bare == "proj":
            found["visual_projection.weight"] = np.ascontiguousarray(value.T)
        elif bare.startswith("transformer.resblocks."):
            block, _, part = bare.removeprefix("transformer.resblocks.").partition(".")
            place = f"vision_model.encoder.layers.{block}."
            if part.startswith("attn.in_proj_"):
                kind = part.removeprefix("attn.in_proj_")
                for letter, third in zip("qkv", np.split(value, 3), strict=True):
                    found[f"{place}self_attn.{letter}_proj.{kind}"] = third
            else:
                module, _, kind = part.rpartition(".")
                found[f"{place}{inside[module]}.{kind}"] = value
        else:
            module, _, kind = bare.rpartition(".")
            found["vision_model." + (top.get(bare) or f"{top[module]}.{kind}")] = value
    return found


def write_models(folder):
    """Write every model as a file, and as a folder of Hugging Face's."""
    for model in MODELS:
        tensors = encoder(model)
        save_file(tensors, folder / f"{model}.safetensors")
        place = folder / "hf" / model
        place.mkdir(parents=True)
        save_file(in_huggingface(tensors), place / "model.safetensors", metadata={"format": "pt"})
        (place / "config.json").write_text(json.dumps(CONFIG))


FILTERS = [{"filter": "resblocks.0.attn", "value": 0.9}, {"filter": "mlp", "value": 0.2}, {"value": 0.5}]
SOME_ZERO = [{"filter": "mlp", "value": 0}, {"value": 0.5}]
DENSE = [{"filter": "attn", "value": 0.7}, {"value": 0.3}]
CURVE = [{"filter": "self_attn", "value": [0, 0.5, 0.3, 0.7, 1]}, {"filter": "mlp", "value": [1, 0.7, 0.3, 0]}]
CURVE += [{"value": 0.5}]
WHOLE = {"density": 1.0}  # mergekit-pytorch fails where a model lacks a parameter


def configurations(folder):
    """Configurations by name: those that begin with ``hf`` are on folders, the others on files."""

    def models(where, *own):
        names = [f"{folder}/{name}.safetensors" if where == "file" else f"{folder}/hf/{name}" for name in MODELS[1:]]
        return [{"model": name, "parameters": dict(values)} for name, values in zip(names, own, strict=False)]

    base, hf = f"{folder}/base.safetensors", f"{folder}/hf/base"
    alpha = f"{folder}/alpha.safetensors"
    weighted = models("file", {"weight": FILTERS, **WHOLE}, {"weight": 0.3, **WHOLE})
    sparse = models("file", *({"weight": weight, "density": DENSE} for weight in (FILTERS, 0.3, 1.0)))
    equal = models("file", *[{"weight": 0.4, "density": DENSE}] * 3)
    crumbs = {"density": 0.6, "gamma": 0.2}
    plain = models("file", {}, {}, {})
    slices = [{"sources": [{"model": f"{folder}/hf/{name}", "layer_range": [0, BLOCKS]} for name in MODELS[1:3]]}]
    some = {"density": [0.2, 0.8]}
    rising = models("hf", {"weight": [0.1, 0.9], **some}, {"weight": 0.5, **some}, {"weight": 1.0, **some})
    letters = [{"filter": "q_proj", "value": [0.2, 0.6]}, {"value": 0.4}]
    return {
        "linear": {
            "merge_method": "linear",
            "models": models("file", {"weight": 0.5}, {"weight": FILTERS}, {"weight": 1.0}),
        },
        "linear_base": {
            "merge_method": "linear",
            "base_model": base,
            "models": [
                {"model": base, "parameters": {"weight": 0.4}},
                *models("file", {"weight": 0.5}, {"weight": 1.0}),
            ],
        },
        "task_arithmetic": {"merge_method": "task_arithmetic", "base_model": base, "models": weighted},
        "task_arithmetic_zeros": {
            "merge_method": "task_arithmetic",
            "base_model": base,
            "models": models("file", {"weight": 0, **WHOLE}, {"weight": SOME_ZERO, **WHOLE}),
            "parameters": {"weight": 0.7},
        },
        "task_arithmetic_normalised": {
            "merge_method": "task_arithmetic",
            "base_model": base,
            "models": weighted,
            "parameters": {"normalize": True, "lambda": 0.7},
        },
        "ties_sum": {
            "merge_method": "ties",
            "base_model": base,
            "models": sparse,
            "parameters": {"normalize": False},
        },
        "ties_mean": {"merge_method": "ties", "base_model": base, "models": equal, "parameters": {"lambda": 1.2}},
        "breadcrumbs": {
            "merge_method": "breadcrumbs",
            "base_model": base,
            "models": models("file", {"weight": 0.4, **crumbs}, {"weight": 0.3, **crumbs}),
        },
        "slerp": {
            "merge_method": "slerp",
            "base_model": alpha,
            "models": plain[:2],
            "parameters": {"t": [{"filter": "attn", "value": 0.3}, {"filter": "mlp", "value": 0.7}, {"value": 0.5}]},
        },
        "model_stock": {"merge_method": "model_stock", "base_model": base, "models": plain},
        "karcher": {"merge_method": "karcher", "models": plain},
        "multislerp": {
            "merge_method": "multislerp",
            "base_model": base,
            "models": models("file", *[{"weight": 1.0}] * 3),
        },
        "sce": {
            "merge_method": "sce",
            "base_model": base,
            "models": plain,
            "parameters": {"select_topk": 0.4},
        },
        "hf_linear": {"merge_method": "linear", "models": models("hf", {"weight": [0.2, 0.8]}, {"weight": 1.0})},
        "hf_linear_base": {
            "merge_method": "linear",
            "base_model": hf,
            "models": models("hf", {"weight": 0.5}, {}, {}),
            "parameters": {"weight": 1.0},
        },
        "hf_task_arithmetic": {
            "merge_method": "task_arithmetic",
            "base_model": hf,
            "models": models("hf", {"weight": [0.1, 0.9]}, {"weight": letters}),
        },
        "hf_ties_sum": {
            "merge_method": "ties",
            "base_model": hf,
            "models": rising,
            "parameters": {"normalize": False},
        },
        "hf_ties_mean": {
            "merge_method": "ties",
            "base_model": hf,
            "models": models("hf", *[{"weight": 1.0, "density": 0.3}] * 3),
        },
        "hf_breadcrumbs": {
            "merge_method": "breadcrumbs",
            "base_model": hf,
            "models": models("hf", *[{"weight": 0.4, "density": [0.5, 0.7], "gamma": 0.2}] * 2),
        },
        "hf_slerp": {
            "merge_method": "slerp",
            "base_model": f"{folder}/hf/alpha",
            "slices": slices,
            "parameters": {"t": CURVE},
        },
    }


def several(folder):
    """Files of ``mergekit-multi`` by name: merges of which the later ones take what the earlier ones give."""

    def model(name, **parameters):
        where = name if name in ("pair", "third") else f"{folder}/hf/{name}"
        return {"model": where, "parameters": parameters}

    base = {"base_model": f"{folder}/hf/base"}
    pair = {"name": "pair", "merge_method": "linear", "models": [model("alpha", weight=1.0), model("beta", weight=3.0)]}
    third = {
        "name": "third",
        "merge_method": "task_arithmetic",
        **base,
        "models": [model("pair", weight=0.6), model("gamma", weight=0.5)],
        "parameters": {"lambda": 0.8},
    }
    last = {"merge_method": "linear", "models": [model("third", weight=2.0), model("alpha", weight=1.0)]}
    only = {
        "merge_method": "task_arithmetic",
        **base,
        "models": [model("alpha", weight=0.4), model("pair", weight=0.7)],
    }
    return {"multi_three": [pair, third, last], "multi_named": [third, pair], "multi_two": [only, pair]}


def merged_by_several(documents, folder):
    """Return the tensors of the final merge; mergekit-multi's own reading says what depends on what."""
    from mergekit.scripts.multimerge import load_config

    text = yaml.safe_dump_all([{**document, "dtype": "float32"} for document in documents])
    place = folder / f"several-{len(list(folder.iterdir()))}"
    configurations, needed = load_config(text, str(place))
    done = {}
    while len(done) < len(configurations):
        name = next(name for name in configurations if name not in done and needed[name] <= set(done))
        done[name] = merged_by_mergekit(yaml.safe_load(configurations[name].to_yaml()), folder)
        if name is not None:
            (place / name).mkdir(parents=True)
            save_file(done[name], place / name / "model.safetensors", metadata={"format": "pt"})
            (place / name / "config.json").write_text(json.dumps(CONFIG))
    used = set().union(*needed.values())
    return next(done[name] for name in done if name not in used)


def merged_by_mergekit(document, folder):
    """Return the tensors that mergekit makes of a configuration."""
    if "/hf/" in json.dumps(document):
        from mergekit.architecture import auto
        from mergekit.config import MergeConfiguration
        from mergekit.graph import Executor
        from mergekit.options import MergeOptions
        from mergekit.plan import MergePlanner

        configuration, options = MergeConfiguration.model_validate(document), MergeOptions()
        models = tuple(configuration.referenced_models())
        # It asks transformers for tied and embedding weights and fails where its table lacks the model; CLIP has none.
        auto.get_transformers_info = lambda model, options: (set(), [], set())
        architecture = auto.infer_architecture_info(models, configuration.base_model, options)
        planner = MergePlanner(configuration, architecture, options, models[0].config())
        done = Executor(planner.plan_in_memory(), math_device="cpu", storage_device="cpu").run(quiet=True)
        return {task.weight_info.name: value.float().numpy() for task, value in done}
    from click.testing import CliRunner
    from mergekit.scripts.merge_raw_pytorch import main

    (folder / "config.yaml").write_text(yaml.safe_dump(document))
    out = folder / f"out-{len(list(folder.iterdir()))}"
    result = CliRunner().invoke(main, [str(folder / "config.yaml"), str(out)])
    if result.exception:
        raise result.exception
    return {name: value for file in out.glob("*.safetensors") for name, value in load_file(file).items()}


def write_values():
    """Run mergekit on every configuration and keep what it makes."""
    from importlib.metadata import version

    if version("mergekit") != VERSION:
        raise SystemExit(f"mergekit {VERSION} is needed; {version('mergekit')} is here.")
    values = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder)
        for title, document in configurations(folder).items():
            made = merged_by_mergekit({**document, "dtype": "float32"}, folder)
            values |= {f"{title}/{key}": np.ascontiguousarray(value, np.float32) for key, value in made.items()}
        for title, documents in several(folder).items():
            made = merged_by_several(documents, folder)
            values |= {f"{title}/{key}": np.ascontiguousarray(value, np.float32) for key, value in made.items()}
    pack(VALUES, values, {"made_with": f"mergekit {VERSION}"})


if __name__ == "__main__":
    write_values()
