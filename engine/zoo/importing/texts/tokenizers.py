"""Tokenizers that lie beside text models: read by content, compared by content, never executed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....errors import CheckpointError
from ...texts.families import FAMILIES
from ...texts.pieces import check_ids, ids_of
from ..documents import read_json

FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)
SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
MAX_BYTES = 100_000_000
READING = ("normalizer", "pre_tokenizer", "model", "post_processor")  # how a text becomes tokens, beyond the table
CODE = ("auto_map", "name_or_path")
PLACE = "_file"  # settings that end so name a file, which may lie anywhere


@dataclass(frozen=True)
class Tokens:
    """A tokenizer by its content."""

    origin: str  # its folder's name
    text: str  # of tokenizer.json
    words: Mapping[str, int]
    special: tuple[int, int, int, int, int]  # pad, begin, separate or end, mask, unknown; −1 where there is none
    names: tuple[str, ...]  # of the same, '' where there is none
    longest: int | None  # tokens a text, as its settings say

    def settings(self) -> dict[str, Any]:
        """Return how texts become tokens, without the table of words."""
        document = json.loads(self.text)
        found = {part: document.get(part) for part in READING}
        model = found["model"] if isinstance(found["model"], dict) else {}
        found["model"] = {name: value for name, value in model.items() if name not in ("vocab", "merges")}
        return found


def has_tokenizer(folder: Path) -> bool:
    """Return whether files of a tokenizer lie in a folder."""
    return any((folder / name).is_file() for name in FILES)


def read_tokens(folder: Path, kind: str) -> Tokens:
    """Read the tokenizer in a folder by transformers' own readers, from its data alone.

    Only files of words and settings are looked at, in a copy without any name of code.

    Args:
        folder: with ``tokenizer.json``, or ``vocab.txt``, ``vocab.json`` and ``merges.txt``, or ``spiece.model``.
        kind: the model's ``model_type``.

    Raises:
        CheckpointError: no such files, or files that cannot be read.
        ZooError: an id of a token is larger than any model's.
    """
    from transformers import AutoTokenizer

    if not has_tokenizer(folder):
        raise CheckpointError(
            f"{folder.name} holds no tokenizer; one of {', '.join(FILES[:5])} is expected beside the weights. Copy the "
            "model's whole folder."
        )
    with tempfile.TemporaryDirectory(prefix="mergelens-") as place:
        copy = Path(place)
        for name in FILES:
            if (folder / name).is_file():
                if (folder / name).stat().st_size > MAX_BYTES:
                    raise CheckpointError(f"{folder.name}/{name} is larger than {MAX_BYTES:,} bytes.")
                (copy / name).write_bytes((folder / name).read_bytes())
                if name.endswith(".json"):
                    _check(name, read_json(folder / name, MAX_BYTES), folder)
        for name in SETTINGS:
            if document := read_json(folder / name):
                _check(name, document, folder)
                kept = {key: value for key, value in document.items() if not (key in CODE or key.endswith(PLACE))}
                (copy / name).write_text(json.dumps(kept), "utf-8")
        (copy / "config.json").write_text(json.dumps({"model_type": kind}), "utf-8")
        try:
            found = AutoTokenizer.from_pretrained(str(copy), local_files_only=True, trust_remote_code=False)
            return _tokens(found, found.backend_tokenizer.to_str(), folder.name, kind)
        except Exception as error:  # the library raises whatever its readers do
            raise CheckpointError(
                f"The tokenizer in {folder.name} cannot be read: {str(error)[:200]}. Copy the model's folder again."
            ) from error


def _check(name: str, document: Mapping[str, Any], folder: Path) -> None:
    """Refuse ids of tokens that nobody has, in any of the files that give some."""
    ids = {
        "tokenizer.json": lambda: ids_of(document),
        "vocab.json": lambda: iter(document.values()),
        "added_tokens.json": lambda: iter(document.values()),
        "tokenizer_config.json": lambda: _numbers(document.get("added_tokens_decoder")),
    }
    check_ids(ids.get(name, lambda: iter(()))(), f"{folder.name}/{name}")


def _numbers(table: Any) -> Iterator[int]:
    """Return the keys of a table that are whole numbers."""
    return (int(key[:20]) for key in table if key.isdecimal()) if isinstance(table, dict) else iter(())


def _tokens(found: Any, text: str, origin: str, kind: str) -> Tokens:
    words = dict(found.get_vocab())
    end = found.eos_token if found.sep_token is None else found.sep_token
    pad = found.pad_token or getattr(found, FAMILIES[kind].pad)
    names = [pad, found.cls_token, end, found.mask_token, found.unk_token]
    special = tuple(words.get(name, -1) if name else -1 for name in names)
    longest = found.model_max_length if found.model_max_length < 10**6 else None
    return Tokens(origin, text, words, special, tuple(str(name or "") for name in names), longest)  # type: ignore[arg-type]


def difference(base: Tokens, expert: Tokens) -> tuple[str, int]:
    """Compare an expert's tokenizer with the base's.

    Returns:
        The first difference in words, '' where there is none; and how many words the expert's table has beyond the
        base's, where that alone is different.
    """
    theirs = {number: word for word, number in expert.words.items()}
    ours = {number: word for word, number in base.words.items()}
    for number in sorted(ours):
        if theirs.get(number) != ours[number]:
            has = f"'{theirs[number]}'" if number in theirs else "nothing"
            return f"token {number} is '{ours[number]}' in the base and {has} in the expert", 0
    for role, mine, own in zip(("pad", "begin", "end", "mask", "unknown"), base.names, expert.names, strict=True):
        if mine != own:
            return f"the {role} token is '{mine}' in the base and '{own}' in the expert", 0
    for part, value in base.settings().items():
        if expert.settings()[part] != value:
            return (
                f"the {part} differs: {_short(value)} in the base, {_short(expert.settings()[part])} in the expert",
                0,
            )
    return "", len(theirs) - len(ours)


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:120]
