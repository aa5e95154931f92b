"""Put trained experts into a zoo's folder: weights first, then the build record, the manifest last."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from itertools import chain, count, takewhile
from pathlib import Path
from typing import Any

import yaml

from ...catalog import FINE_TUNING
from ...errors import ZooError
from ...manifest import STANDARD, Expert, Manifest, Reference, named_files, read_manifest, resolve_inside
from ...recipe import explain, read_yaml
from ..folder import Zoo

RECORD = "build.json"
DISTILLED = "distilled"  # how an expert says that it learned from a teacher
OTHER_BASE = "other_base"  # how the manifest calls experts that start from another zoo's base
EXPERT, FACTORS = "expert.safetensors", "factors.safetensors"  # of a training's folder
SOURCE = "trained by `zoo finetune`, see build.json"


def adopt(
    zoo: Zoo,
    trained: Mapping[str, tuple[Path, Mapping[str, Any]]],
    *,
    replace: bool = False,
    called: str = "",
    start: Zoo | None = None,
) -> dict[str, str]:
    """Add experts to a zoo.

    Args:
        zoo: the zoo; its manifest is read again, in case somebody changed it meanwhile.
        trained: task → folder of the training, with weights and perhaps factors, and its record.
        replace: whether an expert that a task has already gives way.
        called: the name of this way of training in the manifest; by default that of the recipe.
        start: the zoo whose base they start from, where it is another; that base is copied as well.

    Returns:
        Task → name of its expert.

    Raises:
        ZooError: a task has an expert already, a file is in the way, or the folder cannot be written; the manifest then
            stays as it was.
    """
    for name, (folder, record) in trained.items():
        if "joint" in record:
            return _adopt_reference(zoo, name, folder, record, replace)
    manifest = read_manifest(zoo.folder)
    methods = {task: called or _way(record, start is not None) for task, (_, record) in trained.items()}
    names = {task: _name(manifest, task, method, replace) for task, method in methods.items()}
    entries = {task: _entry(names[task], task, methods[task], *pair) for task, pair in trained.items()}
    entries = {task: _placed(zoo.folder, manifest, entry) for task, entry in entries.items()}
    if start is not None:
        entries = {task: _started(entry, start, trained[task][1]) for task, entry in entries.items()}
    try:
        for entry in entries.values():
            if start is not None:
                _copy_base(start, resolve_inside(zoo.folder, entry["base"]))
        for task, (folder, _) in trained.items():
            _copy(folder / EXPERT, resolve_inside(zoo.folder, entries[task]["weights"]))
            if "factors" in entries[task]:
                _copy(folder / FACTORS, resolve_inside(zoo.folder, entries[task]["factors"]))
        _write_record(zoo.folder, {names[task]: dict(record) for task, (_, record) in trained.items()})
        _write_manifest(zoo.folder, manifest, list(entries.values()))
    except OSError as error:
        raise ZooError(f"The experts cannot be written to {zoo.folder}: {error.strerror}.") from error
    return names


def _adopt_reference(zoo: Zoo, name: str, folder: Path, record: Mapping[str, Any], replace: bool) -> dict[str, str]:
    """Name a jointly trained model as a reference of the zoo; returns its name."""
    manifest = read_manifest(zoo.folder)
    there = next((reference for reference in manifest.references if reference.name == name), None)
    if there is not None and not replace:
        raise ZooError(f"The zoo has a jointly trained model '{name}' already; --replace puts the new one in place.")
    wanted = f"{name}.safetensors" if there is None else _replaceable(zoo.folder, there)
    weights = _free(zoo.folder, wanted, manifest, there)
    try:
        _copy(folder / EXPERT, resolve_inside(zoo.folder, weights))
        _write_record(zoo.folder, {name: dict(record)})
        if there is None or there.weights != weights:
            document = read_yaml(zoo.folder / "zoo.yaml", ZooError, "manifest")
            others = [entry for entry in document.get("references") or [] if entry["name"] != name]
            rewrite(zoo.folder, {**document, "references": [*others, {"name": name, "weights": weights}]})
    except OSError as error:
        raise ZooError(f"The model cannot be written to {zoo.folder}: {error.strerror}.") from error
    return {name: name}


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step, so that half of it is never read."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _name(manifest: Manifest, task: str, method: str, replace: bool) -> str:
    expert = manifest.expert_of(task, method)
    if expert is not None:
        if not replace:
            raise ZooError(
                f"Task '{task}' has the expert '{expert.name}' already; --replace puts the new one in place."
            )
        return expert.name
    name = task if method == STANDARD else f"{task}-{method}"
    if name in manifest.expert_table:
        raise ZooError(f"The name '{name}' belongs to another expert; rename that one in zoo.yaml.")
    return name


def way_of(recipe: str, *, taught: bool, moved: bool) -> str:
    """Return what a way of training is called in a manifest, where nobody has named it.

    Args:
        recipe: of fine-tuning.
        taught: by another model.
        moved: to another base, from which training starts.
    """
    if moved:
        return OTHER_BASE
    return DISTILLED if taught else recipe


def _way(record: Mapping[str, Any], moved: bool) -> str:
    return way_of(_recipe(record), taught="teacher" in record, moved=moved)


def _recipe(record: Mapping[str, Any]) -> str:
    return str(record["config"].get("method", STANDARD))


def _entry(name: str, task: str, method: str, folder: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest's entry of a new expert."""
    entry: dict[str, Any] = {"name": name, "task": task, "weights": f"experts/{name}.safetensors", "source": SOURCE}
    if method != STANDARD:
        entry["method"] = method
    if FINE_TUNING[_recipe(record)].forward != "standard":
        entry["forward"] = FINE_TUNING[_recipe(record)].forward
    if (folder / FACTORS).is_file():
        entry["factors"] = f"factors/{name}.safetensors"
    return entry


def _started(entry: Mapping[str, Any], start: Zoo, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of an expert that starts from another base; its factors would not fit this zoo's base."""
    kept = {name: value for name, value in entry.items() if name != "factors"}
    return {**kept, "base": f"bases/{start.manifest.name}-{record['base'][:8]}.safetensors"}


def _copy_base(start: Zoo, target: Path) -> None:
    """Write the encoder of another zoo's base, once."""
    from ...weights import write_weights

    if target.is_file():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    write_weights(target, start.weights("base"), metadata={"base_of": start.manifest.name})


def _placed(folder: Path, manifest: Manifest, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an expert's entry with places for its files that nothing else of the zoo has.

    Weights that give way are replaced where they lie; what an alignment wrote stays what it was.
    """
    there = manifest.expert_table.get(entry["name"])
    files = {name: entry[name] for name in ("weights", "factors") if name in entry}
    if there is not None and not there.aligned:
        files["weights"] = _replaceable(folder, there)
    return {**entry, **{name: _free(folder, path, manifest, there) for name, path in files.items()}}


def _replaceable(folder: Path, there: Expert | Reference) -> str:
    """Return the place of weights that others are to be written to."""
    if resolve_inside(folder, there.weights).suffix != ".safetensors":
        raise ZooError(f"'{there.name}' lies in {there.weights}; only .safetensors files are replaced.")
    return there.weights


def _free(folder: Path, wanted: str, manifest: Manifest, own: Expert | Reference | None) -> str:
    """Return a place in a zoo's folder that only its own entry may name: the wanted one, else a numbered one beside it.

    An entry that was renamed keeps its files, which then bear the name of another. No name of an expert holds a ``~``.
    """
    changed = {
        "experts": tuple(expert for expert in manifest.experts if expert is not own),
        "references": tuple(reference for reference in manifest.references if reference is not own),
    }
    taken = {resolve_inside(folder, path) for path in named_files(manifest.model_copy(update=changed))}
    path = Path(wanted)
    beside = (path.with_name(f"{path.stem}~{number}{path.suffix}") for number in count(2))
    return next(free.as_posix() for free in chain((path,), beside) if resolve_inside(folder, str(free)) not in taken)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        shutil.copyfile(source, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _write_record(folder: Path, records: Mapping[str, Any]) -> None:
    """Keep every expert's record under ``finetuned`` in build.json, beside whatever else it holds."""
    path = folder / RECORD
    document: Any = {}
    if path.is_file():
        try:
            document = json.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise ZooError(f"{path} is not JSON; move it away, so that the build record can be written.") from error
    if not isinstance(document, dict) or not isinstance(document.get("finetuned", {}), dict):
        raise ZooError(f"{path} is no build record; move it away, so that one can be written.")
    document["finetuned"] = {**document.get("finetuned", {}), **records}
    write_atomically(path, (json.dumps({"format": 1, **document}, indent=1) + "\n").encode())


def _write_manifest(folder: Path, manifest: Manifest, entries: Sequence[Mapping[str, Any]]) -> None:
    """Name experts in zoo.yaml; comments above its first key stay, others do not survive the rewriting."""
    changed = {entry["name"]: entry for entry in entries}
    document = read_yaml(folder / "zoo.yaml", ZooError, "manifest")
    known = document.get("experts") or []
    listed = [dict(changed.get(entry["name"], entry)) for entry in known]
    fresh = [dict(entry) for name, entry in changed.items() if name not in manifest.expert_table]
    if fresh or listed != known:
        rewrite(folder, {**document, "experts": [*listed, *fresh]})


def put_aligned(
    zoo: Zoo,
    files: Mapping[str, Path],
    listed: Mapping[str, str],
    method: str,
    called: str = "",
    heads: str = "",
) -> None:
    """Put aligned experts into a zoo; done a second time it changes nothing.

    Args:
        zoo: the zoo; its manifest is read again, in case somebody changed it meanwhile.
        files: expert → its aligned weights.
        listed: expert → the name that they are listed by. Another name than the expert's own is an entry beside it,
            else the expert's entry changes.
        method: of the alignment.
        called: what the manifest calls the way of an entry beside the expert.
        heads: another file of heads for the zoo.

    Raises:
        ZooError: an expert is gone, a name is taken, or the folder cannot be written; the manifest stays as it was.
    """
    manifest = read_manifest(zoo.folder)
    table = manifest.expert_table
    changes = {}
    for expert, name in listed.items():
        there = table.get(name)
        weights = _free(zoo.folder, f"aligned/{name}.safetensors", manifest, there)
        entry = {"weights": weights, "aligned": method, **({"method": called} if called else {})}
        if expert not in table:
            raise ZooError(f"The zoo has no expert '{expert}' any more, so its aligned form is not listed.")
        if name != expert and there is not None and (there.weights, there.aligned) != (entry["weights"], method):
            raise ZooError(
                f"The zoo has an expert '{name}' already; rename that one in zoo.yaml, or take another name."
            )
        changes[expert] = entry
    try:
        for expert, file in files.items():
            _copy(file, resolve_inside(zoo.folder, changes[expert]["weights"]))
        document = read_yaml(zoo.folder / "zoo.yaml", ZooError, "manifest")
        entries: list[dict[str, Any]] = []
        for entry in document.get("experts") or []:
            name = listed.get(entry["name"], "")
            beside = name not in ("", entry["name"])
            changed = {**entry, **changes.get(entry["name"], {})}
            fresh = [{**changed, "name": name}] if beside and name not in table else []
            entries += [entry if beside else changed, *fresh]
        rewrite(zoo.folder, {**document, "experts": entries, **({"heads": heads} if heads else {})})
    except OSError as error:
        raise ZooError(f"The experts cannot be written to {zoo.folder}: {error.strerror}.") from error


def rewrite(folder: Path, document: dict[str, Any]) -> None:
    """Write a changed zoo.yaml in one step; comments above its first key stay.

    Raises:
        ZooError: it would be no manifest.
    """
    path = folder / "zoo.yaml"
    try:
        Manifest.model_validate(document)
    except ValueError as error:
        raise ZooError(f"zoo.yaml cannot be changed: {explain(error, Manifest)}") from error
    lines = path.read_text("utf-8").splitlines(keepends=True)
    header = "".join(takewhile(lambda line: not line.strip() or line.startswith("#"), lines))
    text = header + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)
    write_atomically(path, text.encode())
