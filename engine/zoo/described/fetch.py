"""Downloading what a description names, once somebody has agreed to it: resumed where it stopped, verified, explained.

Files come through huggingface_hub (and open_clip's list of pretrained tags) and stay in huggingface_hub's cache.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from ...errors import Cancelled, ZooError
from ...types import Progress
from .sources import CONVERTED, HUB, TAG, WEIGHTS, WHOLE, Wanted, hub_cache, of_split, of_weights

PATIENCE = 10.0  # seconds to wait for the hub's first answer


class Unreachable(ZooError):
    """The hub does not answer from here."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository."""

    name: str
    size: int
    sha256: str = ""  # '' for small files that the hub keeps without one


@dataclass(frozen=True)
class Listing:
    """The files to be downloaded for one source."""

    item: Wanted
    revision: str
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        """Return bytes of all its files."""
        return sum(file.size for file in self.files)


def list_remote(item: Wanted, architecture: str = "") -> Listing:
    """Ask the hub which files a source means, and how large they are.

    Args:
        item: the source, of the hub or a pretrained tag.
        architecture: open_clip's name, which a tag belongs to.

    Raises:
        ZooError: no such repository, file or tag; no access; no network, with what to do instead.
    """
    item = of_tag(item, architecture) if item.scheme == TAG else item
    if item.scheme != HUB:
        raise ZooError(f"'{item.source}' is no source to be downloaded; put it into a folder: {where_to_put([item])}.")
    revision = item.revision or "main"
    files = _chosen(item, _repository(item, revision))
    if not files and item.role == "data":
        revision = CONVERTED  # the hub's copy in parquet, of data sets in other forms
        files = _chosen(item, _repository(item, revision))
    if not files:
        what = (
            f"parquet files of the split '{item.split}'"
            if item.role == "data"
            else item.path or f"{WHOLE[0]}, {WHOLE[2]} or {WEIGHTS[0]}"
        )
        raise ZooError(f"The repository {item.repository} holds no {what}.")
    return Listing(item, revision, tuple(files))


def list_all(items: Sequence[Wanted], architecture: str, progress: Progress) -> list[Listing]:
    """Ask the hub for all sources of a description.

    Args:
        items: what is missing.
        architecture: open_clip's name, which tags belong to.
        progress: told which source is asked for.

    Raises:
        ZooError: as :func:`list_remote`; where the hub does not answer, all files with the places for them, said once.
    """
    listings = []
    for number, item in enumerate(items):
        progress(number / len(items), f"Asking the hub for {item.label}")
        try:
            listings.append(list_remote(item, architecture))
        except Unreachable as error:
            raise Unreachable(without_network(error, items)) from error
    return listings


def without_network(error: Unreachable, items: Sequence[Wanted]) -> str:
    """Return what to do where the hub does not answer: one sentence with all missing files."""
    return (
        f"{error} Without a network, put the files into a folder and give it with `--from FOLDER`, or choose it in the "
        f"lab: {where_to_put(items)}."
    )


def download(listing: Listing, progress: Progress) -> tuple[Path, ...]:
    """Download a source's files into the cache; what is there already is not downloaded again.

    Args:
        listing: from :func:`list_remote`.
        progress: told the share of bytes; what it raises stops the download, which can be resumed.

    Returns:
        The files, those with weights or images only, in the order of the listing.

    Raises:
        ZooError: the connection broke, the disk is full, or a file is not what the hub announced.
    """
    from huggingface_hub import hf_hub_download

    paths, done = [], 0
    for file in listing.files:
        meter = _meter(progress, done, max(listing.size, 1), f"{listing.item.label}: {Path(file.name).name}")
        with _Explained(listing.item):
            path = hf_hub_download(
                listing.item.repository,
                file.name,
                repo_type=listing.item.kind,
                revision=listing.revision,
                cache_dir=hub_cache(),
                tqdm_class=meter,
                endpoint=os.environ.get("HF_ENDPOINT") or None,
            )
        _verify(Path(path), file)
        done += file.size
        progress(done / max(listing.size, 1), f"{listing.item.label}: {Path(file.name).name}")
        if not file.name.endswith(listing.item.beside):
            paths.append(Path(path))
    return tuple(paths)


def where_to_put(items: Sequence[Wanted]) -> str:
    """Return the names under which a local folder is looked through for sources, those of one kind together."""
    groups: dict[str, list[str]] = {}
    for item in items:
        name = f"{item.repository}/" if item.scheme == HUB else f"{item.source}/" if item.scheme == TAG else item.path
        groups.setdefault(_content(item), []).append(name or item.source)
    return "; ".join(f"{', '.join(names)}{each}" for each, names in groups.items())


def _content(item: Wanted) -> str:
    """Return what a folder of a source has to hold; '' of a single file."""
    if item.role == "data" and item.scheme == HUB:
        return f" with the parquet files of the split '{item.split}'"
    if item.scheme not in (HUB, TAG):
        return ""
    return f" with {item.path}" if item.path else f" with {WHOLE[0]} or {WHOLE[2]}, and config.json where there is one"


def _repository(item: Wanted, revision: str) -> Any:
    from huggingface_hub import HfApi

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name="mergelens")
    with _Explained(item):
        return api.repo_info(
            item.repository, repo_type=item.kind, revision=revision, files_metadata=True, timeout=PATIENCE
        )


def _chosen(item: Wanted, found: Any) -> list[RemoteFile]:
    """Return the files of a repository that a source means, with the configs beside weights."""
    table = {part.rfilename: part for part in found.siblings or ()}
    if item.role == "data":
        names = of_split(table, item.split, item.path)
    else:
        names = of_weights(table, item.path)
        beside = [PurePosixPath(name).with_name(other).as_posix() for name in names[:1] for other in item.beside]
        names += [name for name in beside if name in table]
    return [_file(table[name]) for name in names]


def _file(part: Any) -> RemoteFile:
    sha256 = part.lfs.sha256 if part.lfs is not None else ""
    return RemoteFile(part.rfilename, part.size or 0, sha256 or "")


def of_tag(item: Wanted, architecture: str) -> Wanted:
    """Return the repository behind open_clip's name of pretrained weights.

    Raises:
        ZooError: open_clip has no such tag for the architecture, or not on the hub.
    """
    from open_clip.pretrained import get_pretrained_cfg, list_pretrained_tags_by_model

    known = get_pretrained_cfg(architecture, item.source)
    repository, _, path = str(known.get("hf_hub", "")).rpartition("/")
    if not repository:
        tags = ", ".join(list_pretrained_tags_by_model(architecture)) or "none"
        raise ZooError(f"open_clip has no weights '{item.source}' of {architecture} on the hub. It has: {tags}.")
    return replace(item, scheme=HUB, repository=repository, path=path)


def _verify(path: Path, file: RemoteFile) -> None:
    """Compare size and sha256 with what the hub announced; a file that differs is removed from the cache."""
    fault = ""
    if file.size and path.stat().st_size != file.size:
        fault = f"has {path.stat().st_size:,} bytes; {file.size:,} were announced"
    elif file.sha256:
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        fault = f"has the sha256 {found[:12]}…; {file.sha256[:12]}… was announced" if found != file.sha256 else ""
    if fault:
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise ZooError(f"The downloaded {file.name} {fault}. It was removed; fetch again.")


def _meter(progress: Progress, before: int, total: int, label: str) -> type:
    """Return a progress bar that draws nothing, and passes on how many bytes have come."""
    from tqdm import tqdm

    class Meter(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **{**options, "disable": True})
            self.came = options.get("initial", 0) or 0

        def update(self, n: float | None = 1) -> bool | None:
            self.came += n or 0
            progress(min(1.0, (before + self.came) / total), label)
            return None

    return Meter


class _Explained:
    """Turns what the hub's library raises into sentences; what stops the work on purpose passes."""

    def __init__(self, item: Wanted) -> None:
        self.item = item

    def __enter__(self) -> None:
        """Prepare nothing."""

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        """Explain.

        Raises:
            ZooError: what went wrong and what to do.
        """
        if error is None or isinstance(error, (Cancelled, ZooError)) or not isinstance(error, Exception):
            return
        reason = _reason(error, self.item)
        if reason is not None:
            raise ZooError(reason) from error
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Unreachable(
            f"The Hugging Face Hub cannot be reached from here ({type(error).__name__}: {first:.160})."
        ) from error


def _reason(error: Exception, item: Wanted) -> str | None:
    """Return what is wrong in a sentence; None where the hub did not answer."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return f"{item.repository} is given only to people who agreed to its terms. Log in with `hf auth login` first."
    table: Sequence[tuple[type, Callable[[], str]]] = (
        (errors.RepositoryNotFoundError, lambda: f"The hub has no {item.kind} {item.repository}, or it is private."),
        (errors.RevisionNotFoundError, lambda: f"{item.repository} has no revision '{item.revision}'."),
        (errors.EntryNotFoundError, lambda: f"{item.repository} has no file {item.path}."),
    )
    for kind, text in table:
        if isinstance(error, kind) and not isinstance(error, errors.LocalEntryNotFoundError):
            return text()
    response = getattr(error, "response", None)
    if isinstance(error, errors.HfHubHTTPError) and response is not None and response.status_code < 500:
        return (
            f"The hub refused {item.repository} (status {response.status_code}). Try again, or log in if it is private."
        )
    if isinstance(error, OSError) and getattr(error, "errno", None) == 28:
        return f"The disk of {hub_cache()} is full. Free some space, or set MERGELENS_CACHE to a larger disk."
    return None
