"""Vocabularies of either kind: whole words, or parts of words by a published tokenizer. Free of torch."""

from __future__ import annotations

from pathlib import Path

from ...preparation import Tokenisation
from .pieces import Pieces
from .words import Words

Vocabulary = Words | Pieces


def read_vocabulary(path: Path, stated: Tokenisation) -> Vocabulary:
    """Read the vocabulary that a tokenisation names.

    Raises:
        ZooError: it is missing or of another form.
    """
    return Words.read(path) if stated.special is None else Pieces.read(path, stated.special)
