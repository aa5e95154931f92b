"""Names of samples: sentences that speak of images, said of another kind of data. Free of torch."""

from __future__ import annotations

import re

from ..errors import EngineError
from ..manifest import locate_zoo, read_manifest
from .modalities import USUAL, modality_of
from .modality import Modality

NAMED = re.compile(r"\b(?P<article>[Aa]n )?(?P<noun>[Ii]mages?)\b")


def kind_of_zoo(zoo: str) -> Modality:
    """Return the kind of data of a zoo, a bundled one's name or a path; the usual one where the zoo is gone."""
    try:
        return modality_of(read_manifest(locate_zoo(zoo)))
    except EngineError:
        return USUAL


def called(text: str, kind: Modality) -> str:
    """Return a sentence about images as one about samples of another kind.

    Args:
        text: with the words "image" and "images".
        kind: of data.
    """
    if kind.many == USUAL.many:
        return text

    def name(found: re.Match[str]) -> str:
        noun = kind.many if found["noun"].endswith("s") else kind.one
        noun = noun.capitalize() if found["noun"][0] == "I" else noun
        article = found["article"] or ""
        return (article[0] + " " if article and noun[0].lower() not in "aeiou" else article) + noun

    return NAMED.sub(name, text)
