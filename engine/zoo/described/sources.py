"""Sources of a description's files, and whether they are on this machine. Free of torch and of the network."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from ...catalog.datasets import known_dataset, recognise_dataset
from ...errors import EngineError, ZooError
from ...manifest import ENV_CACHE, Manifest, cache_folder, resolve_inside
from ..encoders.architecture import architecture
from ..importing.roots import ADAPTER, ADAPTERS
from ..modalities import modality_of

HUB, LOCAL, TAG, INSIDE, NOWHERE = "hub", "local", "tag", "inside", "torchvision"
Scheme = Literal["hub", "local", "tag", "inside", "torchvision"]
Role = Literal["base", "reference", "expert", "head", "data"]
WHOLE = ("model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin", "open_clip_pytorch_model.bin")
INDEX = ".index.json"  # behind the name of weights that lie in shards: model-00001-of-00003.safetensors
# The first that a repository has is taken: an adapter, as of a folder, then the safer.
WEIGHTS = (*ADAPTERS, *WHOLE, *(f"{name}{INDEX}" for name in WHOLE))
BESIDE = (ADAPTER, "config.json", "open_clip_config.json", "preprocessor_config.json")  # say what the weights are
PARQUET = ".parquet"
SHARD = re.compile(r"[-_.]?\d+([-_]of[-_]\d+)?(?=\.parquet$)")
PLACE = "{task}"  # in `heads:` of a description with a file for each task
CONVERTED = "refs/convert/parquet"  # the hub's own parquet copy of data sets in other forms
REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")


@dataclass(frozen=True)
class Wanted:
    """One source of a description: a model, a head or the images of a task."""

    role: Role
    name: str  # of the expert, reference or task
    source: str  # as the manifest has it
    scheme: Scheme
    repository: str = ""
    revision: str = ""
    path: str = ""  # inside the repository or folder; of data the configuration
    split: str = ""  # of data
    about: int = 0  # bytes, where they can be told without asking; 0 when not
    many: str = "images"  # what its data are called
    beside: tuple[str, ...] = BESIDE  # files that come with its weights

    @property
    def kind(self) -> str:
        """Return the hub's kind of repository."""
        return "dataset" if self.role == "data" else "model"

    @property
    def label(self) -> str:
        """Return the source's name for people."""
        what = {"base": "base", "data": f"{self.many} of {self.name}", "head": f"head of {self.name}"}
        return what.get(self.role, f"{self.role} {self.name}")


def wanted(manifest: Manifest, folder: Path) -> list[Wanted]:
    """Return every source that a manifest names, in its order; torchvision's data sets stay where they are installed.

    Args:
        manifest: of a zoo or a description.
        folder: where the manifest lies.

    Raises:
        ZooError: a source that cannot be read, with the forms that can.
    """
    size = _about(manifest, folder)
    found = [_parse("base", "base", manifest.backbone.weights, size[0])]
    found += [_parse("reference", item.name, item.weights, size[1]) for item in manifest.references]
    found += [_parse("expert", item.name, item.weights, size[1]) for item in manifest.experts]
    if manifest.heads:
        names = [task.name for task in manifest.tasks] if PLACE in manifest.heads else [""]
        found += [_parse("head", name, manifest.heads.replace(PLACE, name), 0) for name in names]
    for task in manifest.tasks:
        if task.data:
            item = _parse("data", task.name, task.data, 0)
            if item.scheme == NOWHERE and task.root is not None:
                raise ZooError(
                    f"Task '{task.name}' has `root: {task.root:.100}`, which a made zoo does not hold. Leave it out of "
                    "the description, and set MERGELENS_TORCHVISION to the folder of torchvision's data sets."
                )
            found.append(_with_split(item, task.dataset, task.split) if item.scheme == HUB else item)
    for item in found:
        if item.scheme == NOWHERE and item.role != "data":
            raise ZooError(f"'{item.source:.100}' (the {item.label}) names images, not weights; write hf:OWNER/NAME.")
    found = [item for item in found if item.scheme != NOWHERE]
    kind = modality_of(manifest)
    return [replace(item, many=kind.many, beside=(*BESIDE, *kind.tokenizers)) for item in found]


def source_of(role: Role, name: str, source: str) -> Wanted:
    """Return one source of a repository: its place, and of images the split that is evaluated on.

    Args:
        role: what it is.
        name: of the expert or task.
        source: ``hf:OWNER/NAME``, with ``@REVISION`` and ``:FILE`` where they are others than the usual.

    Raises:
        ZooError: it names no repository.
    """
    item = _parse(role, name, source, 0)
    row = recognise_dataset(item.repository)
    return _with_split(item, row.name if row else None) if role == "data" else item


def describes(manifest: Manifest) -> bool:
    """Return whether some of a manifest's files are to be had elsewhere."""
    sources = [manifest.backbone.weights, *(e.weights for e in (*manifest.experts, *manifest.references))]
    sources += [task.data for task in manifest.tasks if task.data] + ([manifest.heads] if manifest.heads else [])
    return any(_scheme(source) in (HUB, LOCAL, TAG) for source in sources)


def find(item: Wanted, folder: Path, places: Sequence[Path] = ()) -> tuple[Path, ...]:
    """List a source's files on this machine; none when it is not here, or not complete as far as can be told.

    Args:
        item: the source.
        folder: where the manifest lies.
        places: local folders to look into, before the caches.
    """
    if item.scheme == INSIDE:
        path = resolve_inside(folder, item.source)
        return (path,) if path.exists() else ()
    for candidate in _candidates(item, places):
        found = _data_files(candidate, item) if item.role == "data" else _weights_files(candidate, item)
        if found:
            return found
    return ()


def hub_cache() -> Path:
    """Return huggingface_hub's cache: inside MERGELENS_CACHE where that is set, else its own."""
    if os.environ.get(ENV_CACHE):
        return cache_folder() / "hub"
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


def of_split(names: Iterable[str], split: str, configuration: str = "") -> list[str]:
    """Return Parquet files of one split (and configuration) among the files of a data set.

    Files whose name goes on behind that of the split are taken where no others are there and all are shards of one.
    """
    files = sorted(name for name in names if name.endswith(PARQUET))
    if configuration and any(configuration in Path(name).parts[:-1] for name in files):
        files = [name for name in files if configuration in Path(name).parts[:-1]]
    start = rf"(^|/){re.escape(split)}"
    exact = [name for name in files if re.search(rf"{start}(/|[-.][^/]*$|_\d[^/]*$)", name)]
    longer = [name for name in files if re.search(rf"{start}_[^/]*$", name)]  # such as test_images-00000-of-00001
    return exact or (longer if len({SHARD.sub("", name) for name in longer}) == 1 else [])


def of_weights(names: Collection[str], path: str = "") -> list[str]:
    """Return the file of a model's weights among the files of a repository, or their index with all of its shards.

    Args:
        names: of the files.
        path: of the weights, where they are not the usual.
    """
    for name in (path,) if path else WEIGHTS:
        if name in names and not name.endswith(INDEX):
            return [name]
        if name in names and (shards := _shards(name, names)):
            return [name, *shards]
    return []


def _shards(index: str, names: Collection[str]) -> list[str]:
    """Return the shards beside an index; none where some are missing."""
    whole = PurePosixPath(index.removesuffix(INDEX))
    pattern = re.compile(rf"{re.escape(whole.with_suffix('').as_posix())}-(\d+)-of-(\d+){re.escape(whole.suffix)}")
    found = [(int(shard[1]), int(shard[2]), name) for name in names if (shard := pattern.fullmatch(name))]
    complete = [(number, most) for number, most, _ in sorted(found)] == [(n + 1, len(found)) for n in range(len(found))]
    return [name for *_, name in sorted(found)] if complete else []


def _parse(role: str, name: str, source: str, about: int) -> Wanted:
    scheme = _scheme(source)
    if scheme == LOCAL and _leads_out(source.partition(":")[2]):
        raise ZooError(
            f"'{source:.100}' leads out of the folder in which it is looked for. Write local:PATH with a path inside "
            "that folder, and put the file there."
        )
    if scheme in (LOCAL, NOWHERE):
        return Wanted(role, name, source, scheme, path=source.partition(":")[2], about=about)
    if scheme != HUB:
        return Wanted(role, name, source, scheme, about=about)
    rest = source.removeprefix("hf:")
    repository, _, path = rest.partition(":")
    repository, _, revision = repository.partition("@")
    if not REPOSITORY.fullmatch(repository) or _leads_out(path) or _leads_out(revision):
        raise ZooError(f"'{source:.100}' names no repository; write hf:OWNER/NAME, hf:OWNER/NAME@REVISION:FILE.")
    return Wanted(role, name, source, HUB, repository, revision, path, about=about)


def _leads_out(path: str) -> bool:
    return path.startswith("/") or ".." in Path(path).parts


def _scheme(source: str) -> Scheme:
    if source.startswith("hf:"):
        return HUB
    if source.startswith("local:"):
        return LOCAL
    if source.startswith("torchvision:"):
        return NOWHERE
    return INSIDE if "." in source or "/" in source else TAG


def _with_split(item: Wanted, dataset: str | None, stated: str = "") -> Wanted:
    """Split and configuration as the description states them, or as the catalogue of data sets knows them."""
    row = known_dataset(dataset) if dataset else None
    hub = row.hub if row else None
    known = hub is not None and hub.repo == item.repository
    split = stated or (hub.split if known else "") or "test"
    path = item.path or ((hub.config if known else "") or "")
    return Wanted(item.role, item.name, item.source, HUB, item.repository, item.revision, path, split)


def _about(manifest: Manifest, folder: Path) -> tuple[int, int]:
    """Return bytes of the base (with its text side) and of an expert in float32."""
    try:
        return modality_of(manifest).published_bytes(architecture(folder, manifest))
    except EngineError:
        return 0, 0


def _candidates(item: Wanted, places: Sequence[Path]) -> Iterator[Path]:
    """Return folders in which a source may lie."""
    if item.scheme == LOCAL:
        yield from places
        return
    if item.scheme == TAG:
        yield from (place / item.source for place in places)
        yield cache_folder() / "tags"
        return
    owner, name = item.repository.split("/")
    for place in places:
        yield from (place / owner / name, place / f"{owner}--{name}", place / name)
        yield from _snapshots(place, item)
        if item.role == "data":
            yield from (place / item.name, place / "data" / item.name)
    yield from _snapshots(hub_cache(), item)


def _snapshots(cache: Path, item: Wanted) -> Iterator[Path]:
    """Return the snapshot of a revision in a cache of huggingface_hub."""
    home = cache / f"{item.kind}s--{item.repository.replace('/', '--')}"
    for revision in filter(None, (item.revision or "main", CONVERTED if item.role == "data" else "")):
        reference = home / "refs" / revision
        commit = reference.read_text().strip() if reference.is_file() else revision
        if re.fullmatch(r"[0-9a-f]{40}|[\w.-]+", commit) and (home / "snapshots" / commit).is_dir():
            yield home / "snapshots" / commit


def _weights_files(folder: Path, item: Wanted) -> tuple[Path, ...]:
    """Return the file of weights, or their index and its shards; an adapter without its config is not complete."""
    inside = PurePosixPath(item.path).parent
    if not (folder / inside).is_dir():
        return ()
    files = [path for path in (folder / inside).iterdir() if path.is_file() and not _lacks_config(path)]
    return tuple(folder / name for name in of_weights({(inside / path.name).as_posix() for path in files}, item.path))


def _lacks_config(place: Path) -> bool:
    return place.name in ADAPTERS and not place.with_name(ADAPTER).is_file()


def _data_files(folder: Path, item: Wanted) -> tuple[Path, ...]:
    """Return all shards of the split; shards named ``…-00000-of-00003`` tell whether some are missing."""
    if item.scheme == LOCAL:
        return ((folder / item.path),) if (folder / item.path).exists() else ()
    if not folder.is_dir():
        return ()
    inside = (path.relative_to(folder).as_posix() for path in folder.rglob(f"*{PARQUET}"))
    names = of_split(inside, item.split, item.path)
    totals = {int(found[1]) for name in names if (found := re.search(r"-of-(\d+)", name))}
    if not names or (totals and len(names) < max(totals)):
        return ()
    return tuple(folder / name for name in names)
