"""Texts, vocabularies and tokenizers in every form, and text models as transformers saves them, with their survey."""

from __future__ import annotations

import contextlib
import csv
import json
import shutil
from pathlib import Path
from random import Random

import pyarrow as pa
from pyarrow import parquet

from engine.errors import EngineError
from engine.zoo.check import check_zoo
from engine.zoo.folder import Zoo
from engine.zoo.importing.request import parse_request
from engine.zoo.importing.survey import survey
from engine.zoo.importing.texts.tokenizers import difference, read_tokens
from engine.zoo.texts.pieces import Pieces
from tests.fuzz import containers, documents
from tests.fuzz.bytes_ import damage
from tests.made_text_models import NOUNS, classifiers, t5, texts, tokenizer
from tests.tiny_text_zoo import make_text_zoo

TEXTS = ("", " ", "\0", "\ud800", "a\ud800b", "\u202e", "x" * 100_000, "a " * 20_000, "́" * 5000, "<s> </s>", "[CLS]")
LABELS = (-1, -2, 10**30, "--5", "-", "²", "٣", "1.5", 1e300, 0.5, True, None, [], {}, "", "circle", float("nan"))
FORMS = {"whole": "bert", "words": "bert", "parts": "roberta"}  # of tokenizers: folder → kind of model


def rewrite(path, change) -> None:
    path.write_bytes(change(path.read_bytes()))


def write_json(path: Path, rng: Random) -> None:
    """Change a document, seldom its bytes."""
    if rng.random() < 0.25:
        rewrite(path, lambda data: damage(data, rng))
    else:
        path.write_bytes(documents.changed_json(path.read_text(), rng).encode("utf-8", "surrogatepass"))


# -- a zoo of texts


def zoo(folder: Path) -> None:
    make_text_zoo(folder, experts=("alpha", "beta"), texts=6)


def spoil_zoo(folder: Path, rng: Random, canary: str) -> None:
    name = rng.choice(("vocabulary.json", "config.json", "data", "data", "data"))
    if name == "data":
        spoil_table(folder / "data" / rng.choice(("alpha.jsonl", "outside.jsonl")), rng, folder / "zoo.yaml")
    else:
        write_json(folder / name, rng)


def spoil_table(path: Path, rng: Random, manifest: Path | None = None) -> None:
    """Spoil texts in a table; half of the time it is one of another form, where a manifest can name that."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    if rng.random() < 0.6:
        change_rows(rows, rng)
    form = rng.choice((".csv", ".tsv", ".parquet")) if manifest is not None and rng.random() < 0.5 else ".jsonl"
    try:
        write_table(path.with_suffix(form), rows)
    except (pa.ArrowException, UnicodeEncodeError, OverflowError):  # such rows exist in JSON alone
        form = ".jsonl"
        write_table(path, rows)
    if manifest is not None:
        manifest.write_text(manifest.read_text().replace(f"data/{path.name}", f"data/{path.stem}{form}"))
    if rng.random() < 0.5:
        rewrite(path.with_suffix(form), lambda data: damage(data, rng))


def change_rows(rows: list[dict], rng: Random) -> None:
    """Change one row, a column, or how many rows there are."""
    row = rng.choice(rows)
    name = rng.choice(list(row))
    kind = rng.randrange(6)
    if kind == 0:
        row["label"] = rng.choice(LABELS)
    elif kind == 1:
        row["text"] = rng.choice(TEXTS)
    elif kind == 2:
        del row[name]
    elif kind == 3:
        row[name] = documents.strange(rng, row)
    elif kind == 4:
        called = rng.choice(("text", "sentence2", "question", "label"))
        for other in rows:
            other[called] = other.pop(name, None)
    else:
        del rows[rng.randrange(len(rows)) :]


def write_table(path: Path, rows: list[dict]) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row)) or ["text"]
    if path.suffix == ".parquet":
        parquet.write_table(pa.table({str(name): [row.get(name) for row in rows] for name in columns}), path)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows))
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)


def read_zoo(folder: Path) -> None:
    opened = Zoo.open(str(folder))
    for data in opened.data.values():
        data.labels("test")
        data.words(data.samples("test"))
    check_zoo(str(folder), lambda fraction, message="": None)


# -- tokenizers


def tokenizers(folder: Path) -> None:
    """A tokenizer in the three forms in which models bring theirs."""
    made = tokenizer()
    made.save_pretrained(folder / "whole")
    for name in ("words", "parts"):
        (folder / name).mkdir()
        settings = {"model_max_length": 32, "pad_token": "[PAD]" if name == "words" else "<pad>"}
        (folder / name / "tokenizer_config.json").write_text(json.dumps(settings))
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    (folder / "words" / "vocab.txt").write_text("\n".join((*special, *NOUNS, "##s", "the")))
    letters = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "b", "ab", "Ġ")
    (folder / "parts" / "vocab.json").write_text(json.dumps({letter: place for place, letter in enumerate(letters)}))
    (folder / "parts" / "merges.txt").write_text("#version: 0.2\na b\n")


def spoil_tokenizers(folder: Path, rng: Random, canary: str) -> None:
    """Spoil one form; the others go away, so that the reader finds the one beside what it was."""
    form = rng.choice(("whole", "whole", "words", "parts"))
    shutil.copytree(folder / form, folder / "before")
    for other in set(FORMS) - {form}:
        shutil.rmtree(folder / other)
    path = rng.choice(sorted((folder / form).iterdir()))
    if path.suffix == ".json":
        write_json(path, rng)
    else:
        rewrite(path, lambda data: damage(data, rng))


def read_tokenizers(folder: Path) -> None:
    for form, kind in FORMS.items():
        if not (folder / form).exists():
            continue
        read_pieces(folder / form)
        found = read_tokens(folder / form, kind)
        if (folder / "before").exists():
            difference(read_tokens(folder / "before", kind), found)


def read_pieces(folder: Path) -> None:
    """Read a tokenizer as a zoo does, where it is whole; a refusal lets the case go on."""
    if not (folder / "tokenizer.json").is_file():
        return
    with contextlib.suppress(EngineError):
        found = Pieces.read(folder / "tokenizer.json", (0, 1, 2, 3, 4))
        rows = found.encode([("the red circle", ""), ("a star is here " * 9, "yes")], 12).ids
        found.spelled(rows[0, 0])
        found.text(rows[1, 0])
        found.answers(("yes", "no"), 12)


# -- models with their tokenizers and texts


def models(folder: Path) -> None:
    for kind, make in (("bert", lambda place: classifiers("bert", place, ("nouns",), shard="6KB")), ("t5", written)):
        (folder / kind).mkdir()
        make(folder / kind)
        texts(folder / kind / "nouns.jsonl", NOUNS, 6)


def written(folder: Path) -> None:
    t5(folder, ("nouns",))


def spoil_models(folder: Path, rng: Random, canary: str) -> None:
    kept, other = rng.sample(("bert", "t5"), 2)
    shutil.rmtree(folder / other)
    place = folder / kept / rng.choice(("base", "nouns", "nouns", "nouns.jsonl"))
    if place.is_file():
        spoil_table(place, rng)
        return
    path = rng.choice(sorted(place.iterdir()))
    if rng.random() < 0.05:
        path.unlink()
        if rng.random() < 0.5:
            path.symlink_to("/etc/passwd")
    elif path.suffix == ".json":
        write_json(path, rng)
    elif path.suffix == ".safetensors" and rng.random() < 0.7:
        rewrite(path, lambda data: changed_tensors(data, rng))
    else:
        rewrite(path, lambda data: damage(data, rng))


def changed_tensors(data: bytes, rng: Random) -> bytes:
    try:
        return containers.changed_safetensors(data, rng)
    except IndexError:  # a shard without tensors has no header to change
        return damage(data, rng)


def read_models(folder: Path) -> None:
    for kind in ("bert", "t5"):
        place = folder / kind
        if not place.exists():
            continue
        document = {"base": str(place / "base"), "experts": [{"path": str(place / "nouns")}], "name": "made"}
        document |= {"data": {"nouns": str(place / "nouns.jsonl")}, "out": str(folder / "out"), "length": 12}
        found = survey(parse_request(document), lambda fraction, message="": None)
        for fault in (one.text for one in found.faults):
            assert 8 < len(fault) < 5000, f"the message has {len(fault)} characters: {fault[:300]}"
        found.to_json()


TARGETS = {
    "texts": (zoo, spoil_zoo, read_zoo),
    "tokenizers": (tokenizers, spoil_tokenizers, read_tokenizers),
    "text_models": (models, spoil_models, read_models),
}
