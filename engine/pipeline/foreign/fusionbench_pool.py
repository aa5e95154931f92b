"""FusionBench's model pools in and out: base and experts of CLIP image encoders, as descriptions of zoos.

Facts: the layout of ``fusion_bench_config/modelpool/CLIPVisionModelPool`` of FusionBench 0.2.33 (Tang et al.,
arXiv:2406.03280): ``models`` maps ``_pretrained_`` and tasks to repositories, or to a loader with its arguments;
``defaults`` may take them from the group ``/model/clip-vit``, whose names end in the task.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ...catalog.datasets import FURTHER_12, MERGED_8, find_dataset, recognise_dataset
from ...errors import ZooError
from ...manifest import Manifest, cache_folder, known_zoos, locate_description, read_manifest
from ...recipe import read_yaml
from ...store.outputs import new_file
from ..export.card import hub_id

TARGET = "fusion_bench.modelpool.CLIPVisionModelPool"
PRETRAINED = "_pretrained_"
BASES = {
    "openai/clip-vit-base-patch32": "ViT-B-32",
    "openai/clip-vit-base-patch16": "ViT-B-16",
    "openai/clip-vit-large-patch14": "ViT-L-14",
}
OWNER = "tanganke"  # of the experts that the group's names stand for
GROUP = "/model/clip-vit@models"
REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")
LOADED_FROM = ("peft_name", "pretrained_model_name_or_path", "model_name", "base_model_name")  # of loaders
THEIR_NAMES = {  # of tasks in repositories, by ours
    "stanford_cars": "stanford-cars",
    "flowers102": "oxford_flowers102",
    "oxford_iiit_pet": "oxford-iiit-pet",
    "rendered_sst2": "rendered-sst2",
}
# Groups of the first so many of twenty tasks; ``eight_tasks`` is another name of the first.
SETS = {"eight_tasks": 8, **{f"TALL{count}": count for count in (10, 12, 14, 16, 18, 20)}}


def is_fusionbench_pool(document: Any) -> bool:
    """Tell whether a parsed YAML document is a pool of CLIP image encoders."""
    if not isinstance(document, dict):
        return False
    known = document.get("_target_") == TARGET
    return known or any("CLIPVisionModelPool" in key for item in _defaults(document) for key in item)


def read_pool(path: Path) -> str:
    """Read a pool as the description of a zoo, in YAML; tasks keep the pool's names.

    Args:
        path: the YAML file of the pool.

    Raises:
        ZooError: no base or experts, a base of another architecture, or a model that names no repository.
    """
    document = read_yaml(path, ZooError, "FusionBench model pool")
    if not is_fusionbench_pool(document):
        raise ZooError(f"{path.name} is no pool of CLIP image encoders: its `_target_` is not {TARGET}.")
    models = {name: place for name, place in _models(document, path).items() if not _is_special(name)}
    base = models.pop(PRETRAINED, None)
    if base is None or not models:
        raise ZooError(f"{path.name} names no {PRETRAINED} and experts under `models`; both are needed.")
    if base not in BASES:
        raise ZooError(f"The pool's base is {base}; {', '.join(BASES)} can be described as zoos.")
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", path.stem)[:64].lstrip("_.-") or "pool"
    zoo = {
        "format": 1,
        "name": name,
        "title": f"{len(models)} experts of CLIP {BASES[base]}",
        "description": f"Read from the FusionBench model pool {path.name}.",
        "backbone": {"architecture": BASES[base], "weights": f"hf:{base}", "quick_gelu": True},
        "experts": [{"name": task, "task": task, "weights": f"hf:{repository}"} for task, repository in models.items()],
        "tasks": [_task(task) for task in models],
    }
    zoo |= _published(zoo)
    Manifest.model_validate(zoo)
    return yaml.safe_dump(zoo, sort_keys=False, allow_unicode=True)


def described(zoo: str) -> tuple[str, list[str]]:
    """Return the description of a zoo that a pool's file stands for, and what of the pool cannot be taken.

    Args:
        zoo: the file of a pool, whose description is written into the cache; everything else comes back as it is.

    Raises:
        ZooError: a pool that cannot be read.
    """
    path = Path(zoo).expanduser()
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return zoo, []
    document = read_yaml(path, ZooError, "zoo or FusionBench model pool")
    if not is_fusionbench_pool(document):
        return zoo, []
    text = read_pool(path)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]  # other pools may have a file of the same name
    target = cache_folder() / "pools" / digest / f"{path.stem}.yaml"
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_file(target, force=True) as file:
        file.write_text(text, "utf-8")
    return str(target), _not_taken(document, path, yaml.safe_load(text))


def _not_taken(document: Mapping[str, Any], path: Path, zoo: Mapping[str, Any]) -> list[str]:
    """Return what of a pool a zoo has no place for, a sentence each."""
    said = []
    special = [name for name in _models(document, path) if _is_special(name)]
    if special:
        said.append(f"Models that are no experts: {', '.join(special)}.")
    unknown = [task["name"] for task in zoo["tasks"] if "dataset" not in task]
    if unknown:
        said.append(f"Images and classes of {', '.join(unknown)}: the catalogue has no such data set.")
    without = [task["name"] for task in zoo["tasks"] if "dataset" in task and "data" not in task]
    if without:
        said.append(f"Images of {', '.join(without)}: the catalogue names no repository of them.")
    datasets = [name for name in ("train_datasets", "val_datasets") if document.get(name)]
    if datasets:
        said.append(f"{' and '.join(datasets)}: images are the test splits of the catalogue's data sets.")
    others = set()
    for listed in (document.get("test_datasets"), *(value for item in _defaults(document) for value in item.values())):
        if isinstance(listed, dict | list):
            others |= {str(name) for name in listed if recognise_dataset(str(name).rpartition("/")[2]) is None}
    others -= {str(name) for name in unknown}
    if others := {name for name in others if not name.startswith(("clip-vit", "_"))}:
        said.append(f"Data sets that the catalogue does not have: {', '.join(sorted(others))}.")
    return said


def _is_special(name: str) -> bool:
    """Tell whether a name in a pool, as FusionBench writes them, stands for no expert; the base is another matter."""
    return name != PRETRAINED and name.startswith("_") and name.endswith("_")


def _published(zoo: Mapping[str, Any]) -> dict[str, Any]:
    """Return the accuracies that are published of these very experts, and the prompts they were measured with."""
    wanted = {expert["weights"]: expert["task"] for expert in zoo["experts"]}
    for known in known_zoos():
        manifest = read_manifest(locate_description(known.name)) if known.described else None
        if manifest is None or manifest.published is None or manifest.backbone.weights != zoo["backbone"]["weights"]:
            continue
        names = {expert.task: wanted[expert.weights] for expert in manifest.experts if expert.weights in wanted}
        if len(names) < len(wanted):
            continue
        accuracy = {
            state: {names[task]: value for task, value in values.items() if task in names}
            for state, values in manifest.published.accuracy.items()
        }
        sets = {task.template_set for task in manifest.tasks}
        templates = {"templates": sets.pop()} if len(sets) == 1 else {}
        published = {"source": manifest.published.source, "url": manifest.published.url, "accuracy": accuracy}
        return {**templates, "published": published}
    return {}


def write_pool(manifest: Manifest) -> str:
    """Return a zoo's base and experts as a pool, in YAML.

    Raises:
        ZooError: a model is in no repository that FusionBench could load it from.
    """
    base = hub_id(manifest.backbone.weights) or next(
        (known for known, architecture in BASES.items() if architecture == manifest.backbone.architecture), ""
    )
    if base not in BASES:
        raise ZooError(
            f"The base is {manifest.backbone.architecture} from {manifest.backbone.weights}; FusionBench's pools of "
            f"CLIP image encoders start from {', '.join(BASES)}."
        )
    models = {PRETRAINED: base}
    for expert in manifest.experts:
        repository = hub_id(expert.weights) or hub_id(expert.source)
        if not repository:
            raise ZooError(
                f"Expert '{expert.name}' names no repository of the Hugging Face Hub in `weights` or `source`, from "
                "which FusionBench could load it. Add `source: hf:OWNER/NAME` to zoo.yaml."
            )
        models[_their_task(expert.name)] = repository
    document = {
        "_target_": TARGET,
        "_recursive_": False,
        "processor": base,
        "models": models,
        "train_datasets": None,
        "test_datasets": None,
        "platform": "hf",
    }
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def _their_task(name: str) -> str:
    row = find_dataset(name)
    return THEIR_NAMES.get(row.name, row.name) if row is not None else name


def _task(name: str) -> dict[str, Any]:
    row = recognise_dataset(name)
    if row is None:
        return {"name": name, "domain": "in"}
    data = {"data": f"hf:{row.hub.repo}"} if row.hub else {}
    return {"name": name, "domain": "in", "dataset": row.name, **data}


def _models(document: Mapping[str, Any], path: Path) -> dict[str, str]:
    """Return the repository of every model by its name in the pool, those of ``defaults`` first."""
    found: dict[str, str] = {}
    for item in _defaults(document):
        for key, value in item.items():
            if key.replace("override ", "") == GROUP:
                for entry in [value] if isinstance(value, str) else value if isinstance(value, list) else []:
                    found |= _of_group(str(entry))
    listed = document.get("models")
    if listed is not None and listed != "???" and not isinstance(listed, dict):
        raise ZooError(f"`models` in {path.name} is a {type(listed).__name__}; a table of names is needed.")
    for name, value in (listed or {}).items() if isinstance(listed, dict) else ():
        found[str(name)] = _repository(str(name), value)
    return found


def _defaults(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    listed = document.get("defaults")
    return [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []


def _of_group(entry: str) -> dict[str, str]:
    """Return the models that a name of the group ``/model/clip-vit`` stands for."""
    base, _, task = entry.partition("_")
    if f"openai/{base}" not in BASES:
        raise ZooError(f"The pool takes '{entry[:80]}' from {GROUP}; names there begin with a CLIP image encoder's.")
    if not task:
        return {PRETRAINED: f"openai/{base}"}
    if task in SETS:
        tasks = [THEIR_NAMES.get(name, name) for name in (*MERGED_8, *FURTHER_12)[: SETS[task]]]
        return {PRETRAINED: f"openai/{base}", **{name: f"{OWNER}/{base}_{name}" for name in tasks}}
    return {task: f"{OWNER}/{base}_{task}"}


def _repository(name: str, value: Any) -> str:
    """Return the repository of one model: as it stands there, or among the arguments of its loader."""
    given = value
    if isinstance(value, dict):
        given = next((value[place] for place in LOADED_FROM if isinstance(value.get(place), str)), None)
    if not isinstance(given, str) or not REPOSITORY.fullmatch(given):
        raise ZooError(
            f"The pool's model '{name[:60]}' is {str(value)[:80]}; a repository of the Hugging Face Hub is needed. Add "
            "files of this machine with `zoo import`."
        )
    return given
