"""Which code this is, so that a service of older code can be told apart."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from .. import __version__


@lru_cache(maxsize=1)
def code_version() -> str:
    """The package's version and a digest of its sources, as they were when this process first asked."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:12]}"
