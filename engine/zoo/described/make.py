"""From a description to a zoo: its files found or fetched, converted, and given heads, in a folder of the cache."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from ...errors import ZooError, nearest
from ...manifest import (
    Manifest,
    locate_description,
    made_folder,
    manifest_file,
    named_files,
    read_manifest,
    resolve_inside,
)
from ...recipe import read_yaml
from ...store.files import alone
from ...store.outputs import new_folder
from ...types import Progress
from ..brought_task import place_file
from ..images.readers.source import split_of
from ..making.adopt import RECORD, rewrite, write_atomically
from ..making.prompts import asked_prompts
from ..modalities import modality_of
from .sources import HUB, INSIDE, LOCAL, TAG, Wanted, describes, find, wanted

TABLES = (".csv", ".tsv")
OWN = (INSIDE, LOCAL)  # schemes of a person's own files
SPARE = 200 * 2**20  # bytes to be left on the disk
STAMPS = "sources.json"  # of a made zoo: size and time of the files of a person's own that it was made of


@dataclass(frozen=True)
class Holding:
    """A description, and which of its sources are on this machine."""

    place: Path  # the description, or the folder whose zoo.yaml names files elsewhere
    manifest: Manifest
    here: dict[Wanted, tuple[Path, ...]]
    prompts: str = ""  # tells zoos of one description apart whose heads have other prompts than it says

    @property
    def folder(self) -> Path:
        """Return the folder of the made zoo."""
        made = made_folder(self.place)
        return made.with_name(f"{made.name}-{self.prompts}") if self.prompts else made

    @property
    def missing(self) -> list[Wanted]:
        """Return sources whose files are not here."""
        return [item for item, files in self.here.items() if not files]

    def without_images(self, of: Sequence[str] | None = None) -> Holding:
        """Return the same without the images of tasks: enough to merge, not to score.

        Args:
            of: names of tasks; None means all.

        Raises:
            ZooError: there is no such task.
        """
        names = set(self.manifest.task_table) if of is None else set(of)
        if unknown := names - set(self.manifest.task_table):
            strange = min(unknown)
            hint = nearest(strange, self.manifest.task_table)
            raise ZooError(f"'{self.manifest.name}' has no task '{strange:.80}'. {hint}")
        tasks = tuple(t.model_copy(update={"data": None}) if t.name in names else t for t in self.manifest.tasks)
        manifest = self.manifest.model_copy(update={"tasks": tasks})
        here = {item: f for item, f in self.here.items() if item.role != "data" or item.name not in names}
        return Holding(self.place, manifest, here, self.prompts)

    @property
    def about(self) -> int:
        """Return bytes of what is missing, as far as they can be told without asking the hub."""
        return sum(item.about for item in self.missing)


def holding(zoo: str, places: Sequence[Path] = (), templates: str = "") -> Holding | None:
    """Return which of a zoo's files are here; None for a zoo that is ready. Reads no file and sends no request.

    Of a zoo that was made without some images these are all that is looked for.

    Args:
        zoo: a name or a path.
        places: local folders to look into beside the caches.
        templates: a published set of prompts or a file of own ones, in the place of the description's.

    Raises:
        ZooError: there is no such zoo, or its manifest or the templates cannot be used.
    """
    place = locate_description(zoo)
    manifest = read_manifest(place)
    prompts = ""
    if templates and describes(manifest):
        manifest, prompts = _with_prompts(manifest, templates)
    if not describes(manifest):
        return None
    folder = manifest_file(place).parent
    items = wanted(manifest, folder)
    own = {item: find(item, folder, places) for item in items if item.scheme in OWN}
    final = Holding(place, manifest, own, prompts).folder
    lacking, again = _lacking(final, manifest), _changed(final, own)
    if lacking == set() and not again:
        return None
    for path in places:
        if not path.is_dir():
            raise ZooError(f"{path} is no folder. Choose the folder that holds the files.")
    if lacking and not again:
        items = [item for item in items if item.role == "data" and item.name in lacking]
    return Holding(place, manifest, {it: own.get(it) or find(it, folder, places) for it in items}, prompts)


def _with_prompts(manifest: Manifest, templates: str) -> tuple[Manifest, str]:
    """Return a manifest whose heads are built of other prompts, and a short name of these; '' where nothing changes."""
    if manifest.heads:
        raise ZooError(f"'{manifest.name}' brings its heads, so no prompts make them. Leave --templates out.")
    asked = asked_prompts(templates)
    asked.check(manifest.task_table)
    before = [task.model_dump(mode="json", exclude_defaults=True) for task in manifest.tasks]
    document = manifest.model_dump(mode="json", exclude_defaults=True, exclude={"templates"})
    changed = Manifest.model_validate({**document, "format": 1, "tasks": [asked.put_into(entry) for entry in before]})
    if changed.tasks == manifest.tasks:
        return manifest, ""
    text = json.dumps([task.model_dump(mode="json") for task in changed.tasks], sort_keys=True)
    return changed, asked.name or hashlib.sha256(text.encode()).hexdigest()[:8]


def make_zoo(found: Holding, progress: Progress, *, download: bool) -> Path:
    """Make the zoo that a description describes; one that was made before of the same files is returned as it is.

    Args:
        found: from :func:`holding`.
        progress: told how far it is; what it raises stops the work. Downloaded files stay, the rest is done again.
        download: somebody has agreed to download what is missing.

    Returns:
        The zoo's folder in the cache.

    Raises:
        EngineError: files are missing and not to be downloaded, or cannot be had; everything that cannot be converted.
    """
    final = found.folder
    if _lacking(final, found.manifest) == set() and not _changed(final, found.here):
        return final
    files = {**found.here, **_fetch(found, lambda f, m="": progress(0.6 * f, m), download)}
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with alone(final.parent, lambda: progress(0.6, "Waiting for another zoo to be made")):
            lacking = _lacking(final, found.manifest)
            if lacking is None or _changed(final, files):
                _make_again(found, files, lambda f, m="": progress(0.6 + 0.4 * f, m))
            elif lacking:
                with alone(final, lambda: progress(0.6, "Waiting for another change of this zoo")):
                    _complete(found, {item: paths for item, paths in files.items() if item.name in lacking}, lacking)
    except OSError as error:
        raise ZooError(f"The zoo cannot be written to {final}: {error.strerror or error}.") from error
    progress(1.0, "Ready")
    return final


def _make_again(found: Holding, files: dict[Wanted, tuple[Path, ...]], progress: Progress) -> None:
    """Make the zoo; one of files that have changed since gives way, but stays beside it if experts have joined it."""
    final = found.folder
    if not (final / "zoo.yaml").is_file():
        _make(found, files, progress)
        return
    trained = (final / RECORD).is_file()
    names = (f"{final.name}~{number}" if trained else f".{final.name}~{number}" for number in count(1))
    before = next(place for place in map(final.with_name, names) if not place.exists())
    final.rename(before)
    try:
        _make(found, files, progress)
    except BaseException:
        before.rename(final)
        raise
    if not trained:
        shutil.rmtree(before, ignore_errors=True)


def _make(found: Holding, files: dict[Wanted, tuple[Path, ...]], progress: Progress) -> None:
    """Make the zoo's folder; all of it appears or nothing."""
    final = found.folder
    if not any(item.role == "base" for item in files):
        raise ZooError(f"{final} has been removed meanwhile. Fetch the zoo again.")
    if final.is_dir() and any(final.iterdir()):
        raise ZooError(f"{final} holds files, but no zoo.yaml. Move it away, then fetch the zoo again.")
    _check_room(final, files)
    stamps = _stamps(files)
    with new_folder(final) as making:
        _convert(found, files, making / "imported", progress)
        for path in (making / "imported").iterdir():
            path.rename(making / path.name)
        (making / "imported").rmdir()
        document = yaml.safe_load((making / "zoo.yaml").read_text("utf-8"))
        document |= {"title": found.manifest.title, "description": found.manifest.description}
        document["tasks"] = _tasks(found.manifest, files, making)
        if found.manifest.published is not None:
            document["published"] = found.manifest.published.model_dump(mode="json")
        (making / "zoo.yaml").write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120))
        (making / STAMPS).write_text(json.dumps(stamps, indent=1), "utf-8")
        read_manifest(making)


def _complete(found: Holding, files: dict[Wanted, tuple[Path, ...]], lacking: Collection[str]) -> None:
    """Bring images that a made zoo lacks; what else has come into its folder since stays."""
    final = found.folder
    brought, stamps = final / ".brought", _stamps(files)
    shutil.rmtree(brought, ignore_errors=True)  # of a process that was killed
    try:
        with new_folder(brought) as making:
            named = {entry["name"]: entry.get("data") for entry in _tasks(found.manifest, files, making)}
        targets = {path: final / "data" / path.name for path in (brought / "data").glob("*")}
        for named_file in map(final.joinpath, named_files(read_manifest(final))):
            if taken := next((target for target in targets.values() if named_file.is_relative_to(target)), None):
                raise ZooError(
                    f"zoo.yaml names {taken} for another task. Move those files, and say there where they are."
                )
        if stamps:
            write_atomically(final / STAMPS, json.dumps({**_made_of(final), **stamps}, indent=1).encode())
        (final / "data").mkdir(exist_ok=True)
        for path, target in targets.items():
            if target.is_dir():
                shutil.rmtree(target)  # left by a process that was killed
            path.replace(target)
    finally:
        shutil.rmtree(brought, ignore_errors=True)
    document = read_yaml(final / "zoo.yaml", ZooError, "manifest")
    tasks = [{**task, "data": named[task["name"]]} if task["name"] in lacking else task for task in document["tasks"]]
    rewrite(final, {**document, "tasks": tasks})


def _lacking(final: Path, manifest: Manifest) -> set[str] | None:
    """Return the tasks whose images are asked for and not in a made zoo; None where it has not been made."""
    if not (final / "zoo.yaml").is_file():
        return None
    table = read_manifest(final).task_table
    return {task.name for task in manifest.tasks if task.data and task.name in table and not table[task.name].data}


def _changed(final: Path, files: Mapping[Wanted, tuple[Path, ...]]) -> bool:
    """Return whether files of a person's own are others now than those that a zoo was made of."""
    made_of = _made_of(final)
    return any(made_of.get(label, stamp) != stamp for label, stamp in _stamps(files).items())


def _made_of(final: Path) -> dict[str, list[int]]:
    """Return what is known of the files that a zoo was made of."""
    try:
        return json.loads((final / STAMPS).read_text("utf-8"))
    except (OSError, ValueError):  # made before these were written
        return {}


def _stamps(files: Mapping[Wanted, tuple[Path, ...]]) -> dict[str, list[int]]:
    """Return size and time of every file of a person's own; what comes from the hub does not change by itself."""
    own = {item.label: paths[0].stat() for item, paths in files.items() if item.scheme in OWN and paths}
    return {label: [status.st_size, status.st_mtime_ns] for label, status in own.items()}


def _fetch(found: Holding, progress: Progress, download: bool) -> dict[Wanted, tuple[Path, ...]]:
    """Return files of what is missing."""
    missing = found.missing
    if not missing:
        return {}
    from .fetch import Unreachable, list_all, where_to_put, without_network
    from .fetch import download as fetch

    away = [item for item in missing if item.scheme not in (HUB, TAG)]
    if away or not download:
        todo = "Put them into a folder and give it with `--from FOLDER`" if away else "Fetch them first"
        few = away or missing
        count = "1 source is" if len(few) == 1 else f"{len(few)} sources are"
        raise ZooError(f"{count} not on this machine. {todo}: {where_to_put(few)}.")
    architecture = found.manifest.backbone.architecture
    listings = list_all(missing, architecture, lambda f, m="": progress(0.05 * f, m))
    total = max(sum(listing.size for listing in listings), 1)
    done, files = 0, {}
    for item, listing in zip(missing, listings, strict=True):

        def report(fraction: float, message: str = "", done: int = done, size: int = listing.size) -> None:
            progress(0.05 + 0.95 * (done + fraction * size) / total, message)

        try:
            files[item] = fetch(listing, report)
        except Unreachable as error:
            raise Unreachable(without_network(error, [it for it in missing if it not in files])) from error
        done += listing.size
    return files


def _check_room(final: Path, files: dict[Wanted, tuple[Path, ...]]) -> None:
    """Refuse where the converted models have no room; images are linked where the disk allows it."""
    needed = sum(path.stat().st_size for item, paths in files.items() if item.role != "data" for path in paths)
    free = shutil.disk_usage(final.parent).free
    if needed + SPARE > free:
        raise ZooError(
            f"The converted models need {needed / 1e9:.1f} GB; {final.parent} has {free / 1e9:.1f} GB free. "
            "Free some space, or set MERGELENS_CACHE to a larger disk."
        )


def _convert(found: Holding, files: dict[Wanted, tuple[Path, ...]], out: Path, progress: Progress) -> None:
    """Convert base, experts and heads as an import of the same files would."""
    from ..importing.convert import import_zoo
    from ..importing.request import ImportRequest, Item

    def of(role: str) -> list[tuple[str, str]]:
        return [(item.name, str(paths[0])) for item, paths in files.items() if item.role == role]

    if of("reference"):
        raise ZooError("A description cannot bring references yet; leave `references:` out.")
    manifest, architecture = found.manifest, found.manifest.backbone.architecture
    if architecture.endswith(".json"):
        architecture = str(resolve_inside(manifest_file(found.place).parent, architecture))
    table = manifest.expert_table
    asked: dict[str, Any] = {
        "base": of("base")[0][1],
        "experts": tuple(Item(path=path, name=name, task=table[name].task) for name, path in of("expert")),
        "heads": tuple(Item(path=path, task=name) for name, path in of("head")),
        "name": manifest.name,
        "title": manifest.title,
        "out": str(out),
        "architecture": architecture,
        "quick_gelu": manifest.backbone.quick_gelu,
    }
    import_zoo(ImportRequest(**{**asked, **modality_of(manifest).import_changes(manifest)}), progress)


def _tasks(manifest: Manifest, files: dict[Wanted, tuple[Path, ...]], out: Path) -> list[dict[str, Any]]:
    """Return the description's tasks, with the places of their images inside the made zoo."""
    entries = []
    of_task = {item.name: (item, paths) for item, paths in files.items() if item.role == "data"}
    for task in manifest.tasks:
        entry = task.model_dump(mode="json", exclude_defaults=True)
        if task.name in of_task:
            item, paths = of_task[task.name]
            entry["data"] = _bring(manifest, item, paths, out)
        entries.append(entry)
    return entries


def _bring(manifest: Manifest, item: Wanted, paths: tuple[Path, ...], out: Path) -> str:
    """Link (or copy) images into the zoo."""
    if len(paths) == 1 and (paths[0].is_dir() or item.scheme in (INSIDE, LOCAL)):
        if paths[0].suffix in TABLES and modality_of(manifest).shown == "picture":
            (task,), _ = modality_of(manifest).find_tasks(paths[0])
            return replace(task, name=item.name).bring(out, link=True)  # with the images that it lists
        target = out / "data" / (item.name if paths[0].is_dir() else f"{item.name}{paths[0].suffix}")
        if paths[0].is_dir():
            shutil.copytree(paths[0], target, copy_function=_linked)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            place_file(paths[0], target, link=True)
        return target.relative_to(out).as_posix()
    folder = out / "data" / item.name
    folder.mkdir(parents=True)
    for number, path in enumerate(paths):
        split = item.split if split_of(item.split) else item.split.split("_")[0]  # such as validation_matched
        target = folder / f"{split or 'test'}-{number:05d}-of-{len(paths):05d}{path.suffix}"
        place_file(path, target, link=True)  # a cache holds symbolic links
    return folder.relative_to(out).as_posix()


def _linked(source: str, target: str) -> None:
    place_file(Path(source), Path(target), link=True)
