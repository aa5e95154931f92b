"""Views that came with an example: folders named by what was asked for, so that pages find them as they find rows."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from .base import View, ViewRequest

FOLDER = "views"  # of an example's folder
SWEEP = "sweep"  # a sweep of the example's recipe
LEARNED = "learned"  # reports of AdaMerging on the example's experts


def shipped_name(view: View, request: ViewRequest) -> str:
    """Return the name of the folder of a view: its kind, and the digest of what was asked for."""
    text = json.dumps(request.model_dump(mode="json"), sort_keys=True, ensure_ascii=False)
    return f"{view.name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def shipped_view(example: Path, view: View, request: ViewRequest) -> Path | None:
    """Return the folder of what a view left that came with an example; None where it did not."""
    folder = example / FOLDER / shipped_name(view, request)
    return folder if folder.is_dir() else None
