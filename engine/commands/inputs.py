"""Files of zoos that commands read, which no result replaces."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ..errors import EngineError
from ..manifest import ELSEWHERE, Manifest, locate_zoo, manifest_file, read_manifest


def files_of_zoo(zoo: str) -> list[Path]:
    """Return the manifest of a zoo and the files that it names, as far as they are on this machine.

    Args:
        zoo: a bundled zoo's name or a path; '' names none.
    """
    if not zoo:
        return []
    with suppress(EngineError, OSError):
        file = manifest_file(locate_zoo(zoo))
        named = [file.parent / name for name in _named(read_manifest(file)) if not name.startswith(ELSEWHERE)]
        return [file, *(path for place in named for path in (place.rglob("*") if place.is_dir() else [place]))]
    return []


def _named(manifest: Manifest) -> list[str]:
    """Return every file or folder that a manifest names, and names of known architectures and weights among them."""
    models = [*manifest.experts, *manifest.references, manifest.backbone]
    named = [manifest.backbone.architecture, manifest.heads, *(model.weights for model in models)]
    return [name for name in (*named, *(task.data for task in manifest.tasks)) if name]
