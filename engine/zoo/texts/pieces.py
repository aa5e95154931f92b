"""Parts of words as tokens, by the tokenizers of published models. Free of torch.

A file is parsed by the `tokenizers` library; nothing in it is executed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ZooError
from .families import ANSWERS
from .words import Tokenised

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_BYTES = 100_000_000
LARGEST_ID = 5_000_000
NONE = -1


@dataclass(frozen=True)
class Pieces:
    """A published tokenizer, and the ids that pad, begin, separate, mask and stand for unknown words."""

    tokenizer: Tokenizer
    special: tuple[int, int, int, int, int]  # NONE where there is no such token
    digest: str

    @classmethod
    def read(cls, path: Path, special: tuple[int, int, int, int, int]) -> Pieces:
        """Read a tokenizer file (tokenizer.json).

        Raises:
            ZooError: it is missing, too large, of another form, or has no such special tokens.
        """
        try:
            stat = path.stat()
        except OSError as error:
            raise ZooError(f"The tokenizer {path.name} cannot be read: {error.strerror}.") from error
        found = cls(*_read(path, stat.st_mtime_ns, stat.st_size, special))
        if max(special) >= len(found) or special[0] == NONE:
            raise ZooError(
                f"The tokenizer {path.name} has {len(found):,} tokens; the ids {special} that zoo.yaml calls "
                "special do not fit."
            )
        return found

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    @property
    def unknown(self) -> int:
        """Return the id of unknown words, NONE where every text can be spelled."""
        return self.special[4]

    @property
    def mask(self) -> int:
        """Return the id that hides a word: the mask's, else that of unknown words."""
        return self.special[3] if self.special[3] != NONE else self.special[4]

    def encode(self, texts: Sequence[tuple[str, str]], length: int) -> Tokenised:
        """Turn texts into rows of ids.

        Args:
            texts: a text each with its second part, '' where there is none.
            length: tokens a row, special ones included; of a pair the longer part is cut at its end.

        Returns:
            int64 (n, 2, length): ids, and 0 or 1 for the part that a token is of.

        Raises:
            ZooError: the tokenizer's template repeats a text, so that one that was cut is too long again.
        """
        ids = np.zeros((len(texts), 2, length), np.int64)
        ids[:, 0] = self.special[0]
        given = [pair if pair[1] else pair[0] for pair in texts]
        whole = self.tokenizer.encode_batch(given)
        cut = np.array([max(0, len(found.ids) - length) for found in whole], np.int64)
        cutting = self._cutting(length) if cut.any() else self.tokenizer
        for row, found in enumerate(whole):
            fitted = cutting.encode_batch([given[row]])[0] if cut[row] else found
            if len(fitted.ids) > length:
                raise ZooError(
                    f"The tokenizer makes {len(fitted.ids)} tokens of a text that was cut to {length}: its template "
                    "repeats a part. Take the tokenizer.json that was published with the model."
                )
            ids[row, 0, : len(fitted.ids)] = fitted.ids
            ids[row, 1, : len(fitted.ids)] = fitted.type_ids
        return Tokenised(ids, cut)

    def answers(self, classes: Sequence[str], length: int) -> np.ndarray:
        """Turn answers into one row of ids, each ended by the token that ends a text: int64 (length,).

        Raises:
            ZooError: there are more than are ranked, or they do not fit into a row.
        """
        if len(classes) > ANSWERS:
            raise ZooError(f"{len(classes)} answers are given; at most {ANSWERS} are ranked. Leave the texts out.")
        line = [number for found in self.tokenizer.encode_batch(list(classes)) for number in found.ids]
        if len(line) > length:
            raise ZooError(
                f"The answers {', '.join(classes[:3])} … take {len(line)} tokens together; texts have {length}. Give "
                "shorter class names, or raise `length` in `tokenisation`."
            )
        return np.array(line + [self.special[0]] * (length - len(line)), np.int64)

    def places(self, ids: np.ndarray) -> np.ndarray:
        """Return the columns (k,) of a row of ids (length,) that hold parts of words, unknown ones included."""
        return np.flatnonzero(~np.isin(ids, [number for number in self.special[:4] if number != NONE]))

    def spelled(self, ids: np.ndarray) -> list[str]:
        """Return the parts of words that ids (k,) stand for."""
        return [self.tokenizer.id_to_token(int(number)) or "?" for number in ids]

    def text(self, ids: np.ndarray) -> str:
        """Return the text that ids (k,) spell, without special words."""
        return self.tokenizer.decode([int(number) for number in ids], skip_special_tokens=True)

    def _cutting(self, length: int) -> Tokenizer:
        """Return the tokenizer that cuts at a length."""
        from tokenizers import Tokenizer

        cutting = Tokenizer.from_str(self.tokenizer.to_str())
        cutting.enable_truncation(length, strategy="longest_first")
        return cutting


def check_ids(ids: Iterator[Any], origin: str) -> None:
    """Refuse ids so large that the library's table, which has a place for each up to the largest, fills the memory.

    Raises:
        ZooError: with the first of them.
    """
    strange = next((number for number in ids if isinstance(number, int) and number > LARGEST_ID), None)
    if strange is not None:
        raise ZooError(f"{origin} gives a token the id {strange:,}; ids up to {LARGEST_ID:,} are read.")


def ids_of(document: Any) -> Iterator[Any]:
    """Return the ids that a tokenizer file (tokenizer.json), parsed, gives its tokens."""
    parts = document if isinstance(document, dict) else {}
    model, added = parts.get("model"), parts.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    yield from vocabulary.values() if isinstance(vocabulary, dict) else ()
    for entry in added if isinstance(added, list) else ():
        yield entry.get("id") if isinstance(entry, dict) else None


@lru_cache(maxsize=8)
def _read(
    path: Path, modified: int, size: int, special: tuple[int, int, int, int, int]
) -> tuple[Tokenizer, tuple[int, int, int, int, int], str]:
    from tokenizers import Tokenizer

    if size > MAX_BYTES:
        raise ZooError(f"The tokenizer {path.name} has {size:,} bytes; at most {MAX_BYTES:,} are read.")
    try:
        content = path.read_bytes()
        check_ids(ids_of(json.loads(content)), f"The tokenizer {path.name}")
        tokenizer = Tokenizer.from_str(content.decode("utf-8"))
    except ZooError:
        raise
    except Exception as error:  # the library raises plain exceptions
        raise ZooError(f"The tokenizer {path.name} cannot be read: {str(error)[:160]}.") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, special, hashlib.sha256(content).hexdigest()
