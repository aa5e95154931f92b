"""Texts: words as ids, tables in every form, and an encoder that computes what transformers computes."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from engine.errors import CheckpointError, DataError, ZooError
from engine.manifest import Task, read_manifest
from engine.preparation import Tokenisation
from engine.weights import Memory
from engine.weights.align import encoder_part
from engine.zoo.folder import Zoo
from engine.zoo.texts.bert import Bert
from engine.zoo.texts.config import checked, encoder_size
from engine.zoo.texts.data import open_texts
from engine.zoo.texts.pieces import Pieces
from engine.zoo.texts.shifts import shift
from engine.zoo.texts.tables import TextTable
from engine.zoo.texts.words import PAD, SEP, UNK, Words, split_words
from tests.tiny_text_zoo import CONFIG, WORDS, make_text_zoo

FIT = Tokenisation(length=8)


@pytest.fixture
def zoo(tmp_path):
    return make_text_zoo(tmp_path / "tiny", experts=("alpha",))


def task(name="reviews", **changes):
    return Task.model_validate({"name": name, "domain": "in", "classes": ["bad", "good"], **changes})


def test_the_encoder_computes_what_transformers_computes():
    transformers = pytest.importorskip("transformers")
    config = checked(CONFIG, "of the test")
    theirs = transformers.BertForSequenceClassification(
        transformers.BertConfig(
            **{key: value for key, value in config.items() if key != "model_type"},
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=3,
        )
    ).eval()
    ours = Bert(config).eval()
    part = encoder_part(Memory(theirs.state_dict()))
    ours.load_state_dict({name.removeprefix("bert."): part.tensor(name) for name in part.names})
    texts = [("the red circle is here", ""), ("a star", "the big square was there")]
    ids = torch.from_numpy(WORDS.encode(texts, 12).ids)
    with torch.no_grad():
        expected = theirs.bert(
            input_ids=ids[:, 0], token_type_ids=ids[:, 1], attention_mask=(ids[:, 0] != PAD).long()
        ).pooler_output
        torch.testing.assert_close(ours(ids), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(ours(ids[..., :11]), expected, rtol=1e-5, atol=1e-6)
    assert encoder_size(config).parameters == sum(tensor.numel() for tensor in ours.parameters())


def test_texts_become_ids_with_their_parts_and_are_cut_at_the_end_of_the_longer_part():
    words = Words.of(["red", "star", "circle", "!"])
    found = words.encode([("Red star!", ""), ("red sun", "circle"), ("red red red red red red red", "star")], 8)
    assert found.ids[0, 0].tolist() == [1, 5, 6, 8, 2, 0, 0, 0]
    assert found.ids[1, 0].tolist() == [1, 5, UNK, SEP, 7, SEP, 0, 0]
    assert found.ids[1, 1].tolist() == [0, 0, 0, 0, 1, 1, 0, 0]
    assert found.ids[2, 0].tolist() == [1, 5, 5, 5, 5, 2, 6, 2]
    assert found.cut.tolist() == [0, 0, 3]
    assert split_words("Don't stop - it's FUN?") == ["don't", "stop", "-", "it's", "fun", "?"]


def test_vocabularies_are_checked(tmp_path):
    path = tmp_path / "vocabulary.json"
    for content, message in (
        ("{", "cannot be read"),
        ('{"words": 3}', "lists no `words`"),
        ('{"tokenizer": "pieces", "words": ["a"]}', "is of the kind 'pieces'"),
        (json.dumps({**WORDS.as_json(), "words": [*WORDS.index, "star"]}), "lists a word twice"),
    ):
        path.write_text(content)
        with pytest.raises(ZooError, match=message):
            Words.read(path)
    path.write_text(json.dumps(WORDS.as_json()))
    assert Words.read(path).index == WORDS.index


ROWS = [
    {"sentence1": "one", "sentence2": "two", "label": "good", "split": "test"},
    {"sentence1": "three", "sentence2": "four", "label": "bad", "split": "validation"},
]


def write(path, form):
    table = pd.DataFrame(ROWS)
    if form == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in ROWS))
    elif form == "parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, sep="\t" if form == "tsv" else ",")


@pytest.mark.parametrize("form", ["jsonl", "csv", "tsv", "parquet"])
def test_tables_of_every_form_are_read_alike(tmp_path, form):
    write(tmp_path / f"d.{form}", form)
    data = open_texts(tmp_path, task(data=f"d.{form}"))
    assert data.lengths == {"test": 1, "val": 1}
    assert data.texts("test") == [("one", "two")]
    assert data.labels("test").tolist() == [1]
    assert data.labels("val").tolist() == [0]


def test_a_folder_of_files_named_after_splits(tmp_path):
    folder = tmp_path / "cola"
    folder.mkdir()
    for name in ("train-00000-of-00001", "validation-00000-of-00001"):
        pd.DataFrame({"sentence": ["a", "b"], "label": [0, 1], "idx": [0, 1]}).to_parquet(folder / f"{name}.parquet")
    data = open_texts(tmp_path, task(data="cola"))
    assert data.lengths == {"train": 2, "test": 2}
    assert "validation split is evaluated on" in data.notes[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no rows"),
        (b'{"text": "a"}', "without labels|has no label"),
        (b'{"text": "a", "label": 5}', "label 5, but there are 2 classes"),
        (b'{"sentence2": "a", "label": 0}', "none of a text.*no first part"),
        (b'{"text": 3, "label": 0}', "is no text"),
        (b'{"text": "a", "label": 0, "split": "later"}', "row of the split 'later'"),
        (b'{"text": "caf\xe9", "label": 0}', "no UTF-8 text"),
        (b"[1]", "holds no object"),
        (b'{"text": "a", "label": "fine"}', "Only in the data: 'fine'"),
        (b'{"text": "a", "label": 0, "split": "train"}', "no test texts"),
    ],
)
def test_bad_tables_are_named(tmp_path, content, message):
    (tmp_path / "d.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_texts(tmp_path, task(data="d.jsonl")).labels("test")


@pytest.mark.parametrize("label", ["--5", 10**30, 1e300, "9" * 30, True])
def test_labels_that_are_no_number_to_count_with_are_names(tmp_path, label):
    (tmp_path / "t.jsonl").write_text(json.dumps({"text": "a", "label": label}))
    found = open_texts(tmp_path, task(data="t.jsonl", classes=[str(label), "other"]))
    assert found.labels("test").tolist() == [0]


@pytest.mark.parametrize("name", ["a.csv", "semicolons.csv", "a.tsv", "a.jsonl"])
def test_tables_as_spreadsheets_save_them(tmp_path, name):
    """Begin with a mark of byte order, capital letters in columns, whole numbers with a point, no split."""
    lines = ["Text,Label,Split", "good,1.0,", "bad,0.0,train", "fine,1.0,"]
    if name.endswith("jsonl"):
        rows = [dict(zip(lines[0].split(","), line.split(","), strict=True)) for line in lines[1:]]
        lines = [json.dumps(row) for row in rows]
    separator = {"a.tsv": "\t", "semicolons.csv": ";"}.get(name, ",")
    text = "\n".join(lines if name.endswith("jsonl") else [line.replace(",", separator) for line in lines])
    (tmp_path / name).write_text(text, "utf-8-sig")
    table = TextTable(tmp_path / name)
    assert (table.brought, table.lengths) == ((), {"test": 2, "train": 1})
    assert table.texts("test", [0, 1]) == [("good", ""), ("fine", "")]
    assert table.labels("test").tolist() == [1, 1]


def test_an_empty_label_is_none(tmp_path):
    (tmp_path / "a.csv").write_text("text,label,split\ngood,yes,test\nbad,,adapt\n")
    table = TextTable(tmp_path / "a.csv")
    assert (table.brought, table.labelled("adapt")) == (("yes",), False)
    (tmp_path / "a.csv").write_text("text,label\ngood,yes\nbad, \n")
    with pytest.raises(DataError, match="test text 1 has no label; give all of them one"):
        TextTable(tmp_path / "a.csv")


@pytest.mark.parametrize(("labels", "brought"), [("10", ()), (("yes", "no"), ("no", "yes"))])
def test_words_beside_texts_that_are_only_adapted_on_are_no_classes(tmp_path, labels, brought):
    lines = [f"good,{labels[0]},test", f"bad,{labels[1]},test", "fine,unknown,adapt"]
    (tmp_path / "a.csv").write_text("\n".join(["text,label,split", *lines]))
    table = TextTable(tmp_path / "a.csv")
    assert (table.brought, table.span, table.labelled("adapt")) == (brought, None, False)
    assert table.labels("test").tolist() == [1, 0]
    assert table.lengths == {"test": 2, "adapt": 1}


def test_labels_may_stand_among_blanks(tmp_path):
    (tmp_path / "t.csv").write_text("text,label\na,1\x1d\nb, 0 \n")
    assert open_texts(tmp_path, task(data="t.csv")).labels("test").tolist() == [1, 0]


@pytest.mark.parametrize(
    "row", ['"text": "a\\ud800"', '"text": "a", "more": ["\\uDC00"]', '"\\udfff": "", "text": "a"']
)
def test_half_a_character_is_refused(tmp_path, row):
    (tmp_path / "t.jsonl").write_text('{"text": "\\ud83d\\ude00", "label": 0}\n{' + row + ', "label": 1}')
    with pytest.raises(DataError, match="line 2 holds half of a character"):
        open_texts(tmp_path, task(data="t.jsonl"))


def test_a_grade_is_no_truth_value(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"text": "a", "label": 0.5}\n{"text": "b", "label": true}')
    with pytest.raises(DataError, match="'True', which is no number"):
        open_texts(tmp_path, task(data="t.jsonl", classes=[], measure="pearson", grades=[0.0, 0.5, 1.0]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": {"bert": 1}}, "known kinds of text models"),
        ({"model_type": ["bert"]}, "known kinds of text models"),
        ({"num_decoder_layers": 10**9}, "num_decoder_layers as 1000000000; a whole number from 1 to 256"),
    ],
)
def test_configs_that_nobody_has_are_refused(change, message):
    with pytest.raises(ZooError, match=message):
        checked({**CONFIG, **change}, "of the test")


def test_empty_texts_are_refused_or_left_out(zoo):
    rows = [json.loads(line) for line in (zoo / "data/alpha.jsonl").read_text().splitlines()]
    rows[3]["text"] = "  "
    (zoo / "data/alpha.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = Zoo.open(str(zoo)).data["alpha"]
    with pytest.raises(DataError, match="1 of 24 texts hold no word: test text 3"):
        data.samples("test")
    manifest = (zoo / "zoo.yaml").read_text().replace("  data: data/alpha", "  corrupt: skip\n  data: data/alpha")
    (zoo / "zoo.yaml").write_text(manifest)
    data = Zoo.open(str(zoo)).data["alpha"]
    assert 3 not in data.usable("test")
    assert data.samples("test", data.usable("test")).shape == (23, 2, 12)
    assert "1 texts hold no word and are left out" in data.skipped()


def test_long_texts_and_unknown_words_are_counted(zoo):
    rows = [json.loads(line) for line in (zoo / "data/alpha.jsonl").read_text().splitlines()]
    rows[0]["text"] = "star " * 30
    rows[1]["text"] = "unheard of"
    (zoo / "data/alpha.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said = Zoo.open(str(zoo)).data["alpha"].remarks()
    assert "1 of 60 texts have more than 12 tokens and are cut" in said[0]
    assert "of its tokens are not in the vocabulary" in said[1]


def test_what_does_not_fit_together_is_refused(zoo):
    config = json.loads((zoo / "config.json").read_text())
    for change, message in (
        ({"vocab_size": 99}, "has 18 words, the encoder 99"),
        ({"max_position_embeddings": 6}, "Texts of 12 tokens are asked for, and the encoder has 6"),
        ({"hidden_act": "relu"}, "asks for 'relu'"),
        ({"model_type": "xlnet"}, "of the kind 'xlnet'"),
        ({"num_attention_heads": 3}, "leaves a rest"),
        ({"hidden_size": 10**9}, "a whole number from 1 to 16,384"),
    ):
        (zoo / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ZooError, match=message):
            Zoo.open(str(zoo)).preprocess()
    manifest = (zoo / "zoo.yaml").read_text()
    (zoo / "zoo.yaml").write_text(manifest.replace("modality: text\n", ""))
    with pytest.raises(ZooError, match="add `modality: text`"):
        read_manifest(zoo)


def test_strange_tensors_beside_an_encoder_are_named():
    tensors = {"bert.pooler.dense.bias": torch.zeros(2), "bert.embeddings.position_ids": torch.arange(2)}
    tensors["classifier.weight"] = torch.zeros(2, 2)
    assert encoder_part(Memory(tensors)).names == ("bert.pooler.dense.bias",)
    with pytest.raises(CheckpointError, match=r"decoder\.weight, which belong"):
        encoder_part(Memory({**tensors, "decoder.weight": torch.zeros(1)}))


def test_shifts_change_words_and_nothing_else():
    ids = torch.from_numpy(WORDS.encode([("the red circle is here", "a star"), ("star", "")], 12).ids)
    typos, dropped, swapped = (shift(ids, kind, "t", 0)[0] for kind in ("typos", "dropped", "swapped"))
    assert (typos[0] == UNK).sum() == 1
    assert (dropped[0] != PAD).sum() == (ids[0, 0] != PAD).sum() - 1
    assert np.array_equal(np.sort(swapped[0]), np.sort(ids[0, 0]))
    for changed in (typos, dropped, swapped):
        assert (changed[0] == SEP).sum() == 2
    assert torch.equal(shift(ids, "typos", "t", 0)[1], ids[1])


def test_texts_of_two_words_are_swapped_only_where_the_first_is_drawn():
    ids = torch.from_numpy(WORDS.encode([("red circle", "")] * 40, 12).ids)
    kept = (shift(ids, "swapped", "t", 0) == ids).all(dim=-1).all(dim=-1)
    assert 0 < int(kept.sum()) < 40
    assert not any((shift(ids, kind, "t", 0) == ids).all(dim=-1).all(dim=-1).any() for kind in ("typos", "dropped"))


def test_a_template_that_repeats_a_text_is_refused_where_the_text_does_not_fit():
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    published = Tokenizer(models.WordLevel({"?": 0, "a": 1}, "?"))
    published.pre_tokenizer = pre_tokenizers.Whitespace()
    published.post_processor = processors.TemplateProcessing(single="$A $A", pair="$A $B", special_tokens=[])
    pieces = Pieces(published, (0, -1, -1, -1, 0), "")
    assert pieces.encode([("a a", "")], 4).ids[0, 0].tolist() == [1, 1, 1, 1]
    with pytest.raises(ZooError, match="repeats a part"):
        pieces.encode([("a a a a a", "")], 4)
