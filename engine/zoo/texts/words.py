"""Whole words as tokens: a vocabulary file, and sentences as rows of ids. Free of torch."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ZooError

SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]")
PAD, CLS, SEP, MASK, UNK = range(len(SPECIAL))
KIND = "lower-case words"
MAX_BYTES = 20_000_000
WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")


@dataclass(frozen=True)
class Tokenised:
    """Token ids and segments (n, 2, length), and how many words did not fit into each text (n,)."""

    ids: np.ndarray
    cut: np.ndarray


@dataclass(frozen=True)
class Words:
    """A vocabulary of whole words: ids 0 to 4 pad, begin, separate, mask and stand for unknown words."""

    index: Mapping[str, int]  # word → id
    digest: str

    @classmethod
    def of(cls, words: Sequence[str]) -> Words:
        """Make a vocabulary of words, in their order, after the special tokens."""
        index = {word: number for number, word in enumerate((*SPECIAL, *words))}
        return cls(index, hashlib.sha256(json.dumps(list(index)).encode()).hexdigest())

    @classmethod
    def read(cls, path: Path) -> Words:
        """Read a vocabulary file.

        Raises:
            ZooError: it is missing, of another form, or names a word twice.
        """
        try:
            stat = path.stat()
        except OSError as error:
            raise ZooError(f"The vocabulary {path.name} cannot be read: {error.strerror}.") from error
        return _read(path, stat.st_mtime_ns, stat.st_size)

    def as_json(self) -> dict[str, Any]:
        """Return what a vocabulary file holds."""
        return {"tokenizer": KIND, "words": list(self.index)}

    def __len__(self) -> int:
        return len(self.index)

    def encode(self, texts: Sequence[tuple[str, str]], length: int) -> Tokenised:
        """Turn texts into rows of ids.

        Args:
            texts: a text each with its second part, '' where there is none.
            length: tokens a row, special ones included; what is longer is cut at its end.

        Returns:
            int64 (n, 2, length): ids, and 0 or 1 for the part that a token is of.
        """
        ids = np.zeros((len(texts), 2, length), np.int64)
        cut = np.zeros(len(texts), np.int64)
        for row, (first, second) in enumerate(texts):
            parts = [self._ids(first)] + ([self._ids(second)] if second else [])
            fitted = _fitted(parts, length - 1 - len(parts))
            cut[row] = sum(map(len, parts)) - sum(map(len, fitted))
            line = [CLS]
            for number, part in enumerate(fitted):
                start = len(line) if number else 0
                line += [*part, SEP]
                ids[row, 1, start : len(line)] = number
            ids[row, 0, : len(line)] = line
        return Tokenised(ids, cut)

    @property
    def unknown(self) -> int:
        """Return the id of unknown words."""
        return UNK

    @property
    def mask(self) -> int:
        """Return the id that hides a word."""
        return MASK

    def places(self, ids: np.ndarray) -> np.ndarray:
        """Return the columns (k,) of a row of ids (length,) that hold words, unknown ones included."""
        return places_of(ids)

    def spelled(self, ids: np.ndarray) -> list[str]:
        """Return the words that ids (k,) stand for."""
        known = list(self.index)
        return [known[number] for number in ids]

    def _ids(self, text: str) -> list[int]:
        return [self.index.get(word, UNK) for word in split_words(text)]


def split_words(text: str) -> list[str]:
    """Return the lower-case words and marks of a text."""
    return WORD.findall(text.lower())


def places_of(ids: np.ndarray, special: Sequence[int] | None = None) -> np.ndarray:
    """Return the columns (k,) of a row of token ids (length,) that hold words, unknown ones included.

    Args:
        ids: the row.
        special: ids that pad, begin, separate and mask; those of a vocabulary of whole words by default.
    """
    return np.flatnonzero(~np.isin(ids, (PAD, CLS, SEP, MASK) if special is None else special[:4]))


def _fitted(parts: list[list[int]], room: int) -> list[list[int]]:
    """Cut the longer part word by word until everything fits."""
    kept = [len(part) for part in parts]
    while sum(kept) > max(room, 0):
        kept[int(np.argmax(kept))] -= 1
    return [part[:count] for part, count in zip(parts, kept, strict=True)]


@lru_cache(maxsize=8)
def _read(path: Path, modified: int, size: int) -> Words:
    if size > MAX_BYTES:
        raise ZooError(f"The vocabulary {path.name} has {size:,} bytes; at most {MAX_BYTES:,} are read.")
    try:
        content = path.read_bytes()
        document = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise ZooError(f"The vocabulary {path.name} cannot be read: {error}.") from error
    words = document.get("words") if isinstance(document, dict) else None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ZooError(f"The vocabulary {path.name} lists no `words`; a list of words is expected, special ones first.")
    if document.get("tokenizer") != KIND or tuple(words[: len(SPECIAL)]) != SPECIAL:
        raise ZooError(
            f"The vocabulary {path.name} is of the kind {document.get('tokenizer')!r:.40} and begins with "
            f"{', '.join(words[:5])!r:.80}; '{KIND}' beginning with {', '.join(SPECIAL)} is expected."
        )
    if len(set(words)) != len(words):
        raise ZooError(f"The vocabulary {path.name} lists a word twice; each word needs one id.")
    return Words({word: number for number, word in enumerate(words)}, hashlib.sha256(content).hexdigest())
