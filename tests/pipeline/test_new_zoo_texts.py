"""`zoo init --base --data` on texts of every form, with experts trained on them."""

import csv
import json

import pytest
import yaml

from engine.manifest import read_manifest
from engine.zoo.folder import Zoo
from tests.tiny_text_zoo import make_text_zoo

SAID = {"plain": "the circle is here", "turned_round": "here was a star", "long": "a big blue square is there"}
SPLITS = ("train", "val", "test")


def rows(each=4, split=None):
    made = [(f"{text} {'red ' * n}".strip(), name) for n in range(each) for name, text in SAID.items()]
    return [{"text": text, "label": name, **({"split": split} if split else {})} for text, name in made]


def write_lines(path, found):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


def write_table(path, found):
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(found[0]))
        writer.writeheader()
        writer.writerows(found)


def scale_of(zoo, task):
    return zoo.heads([task])[0][task].scale


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_text_zoo(tmp_path_factory.mktemp("base") / "tiny_text")


@pytest.fixture
def init(base, tmp_path, command):
    """Call the command on some texts; the new zoo, and what was printed."""

    def call(data, *more, name="mine"):
        code, out, err = command("zoo", "init", tmp_path / name, "--base", base, "--data", data, *more)
        if code:
            assert not [path for path in tmp_path.iterdir() if name in path.name], "something was left behind"
            return None, err
        return Zoo.open(str(tmp_path / name)), out

    return call


def test_every_form_becomes_a_task_that_experts_learn(init, base, tmp_path, command):
    texts = tmp_path / "texts"
    for split in SPLITS:
        write_lines(texts / "folder" / f"{split}.jsonl", rows())
    write_lines(texts / "lines.jsonl", [row for split in SPLITS for row in rows(split=split)])
    write_table(texts / "table.csv", [row for split in SPLITS for row in rows(split=split)])
    (texts / "table.json").write_text(json.dumps({"title": "In a table", "licence": "CC0", "suggested": "OOD"}))
    (texts / "notes").mkdir()
    zoo, out = init(texts)
    assert "Left out, because there are no texts in them: notes" in out
    tasks = zoo.manifest.task_table
    assert list(tasks) == ["folder", "lines", "table"]
    assert all(task.classes == ("long", "plain", "turned round") for task in tasks.values())
    assert (tasks["table"].title, tasks["table"].licence, tasks["table"].domain) == ("In a table", "CC0", "out")
    assert zoo.manifest.modality == "text"
    assert "class means of the base's features on training texts" in zoo.manifest.description
    for name, data in zoo.data.items():
        assert data.lengths == dict.fromkeys(SPLITS, 12), name
        assert data.labels("train")[:3].tolist() == [1, 2, 0]
    theirs, ours = Zoo.open(str(base)), read_manifest(zoo.folder).backbone
    assert zoo.preprocess().digest == theirs.preprocess().digest
    assert ours.tokenisation.length == theirs.manifest.backbone.tokenisation.length
    assert scale_of(zoo, "lines") == pytest.approx(scale_of(theirs, "alpha"))
    assert command("zoo", "finetune", zoo.folder, "--steps", "2", "--batch-size", "2").code == 0
    assert [expert.task for expert in read_manifest(zoo.folder).experts] == ["folder", "lines"]


def test_test_texts_are_set_aside_where_there_are_no_splits(init, tmp_path):
    pairs = [row | {"text_pair": f"small {row['label']}"} for row in rows(each=5)]
    zoo, out = init(write_lines(tmp_path / "alone.jsonl", pairs), "--test-share", "0.4", "--heads", "probe")
    assert "alone: 40 % of every class are set aside as test texts (seed 0)" in out
    data = zoo.data["alone"]
    assert data.lengths == {"test": 6, "train": 9}
    for split in data.lengths:
        for (text, pair), label in zip(data.texts(split), data.labels(split), strict=True):
            assert text.startswith(SAID[sorted(SAID)[label]])
            assert pair == f"small {sorted(SAID)[label]}"
    drawn = []
    for seed in (0, 1):
        other, _ = init(tmp_path / "alone.jsonl", "--test-share", "0.4", "--seed", seed, name=f"seed{seed}")
        drawn.append(other.data["alone"].texts("test"))
    assert drawn[0] == data.texts("test") != drawn[1]


def test_what_the_vocabulary_does_not_know_is_said(init, tmp_path):
    found = [row | {"text": f"{row['text']} zebra"} for row in rows()]
    _, out = init(write_lines(tmp_path / "new.jsonl", found), "--test-share", "0.5")
    assert "of its tokens are not in the vocabulary" in out


@pytest.mark.parametrize(
    ("found", "more", "reason"),
    [
        (rows(), (), "no training texts to build a head from"),
        (rows(), ("--test-share", "1"), "leaves nothing to train on"),
        (rows(each=1), ("--test-share", "0.5"), "one text a class; none can be set aside"),
        (rows(), ("--heads", "text"), "Take --heads prototypes or --heads probe"),
        (rows(), ("--templates", "openai"), "leave --templates out"),
        (rows(), ("--outside", "elsewhere"), "There is no task 'elsewhere' among the texts"),
        ([{"text": "the star", "label": n} for n in (0, 1)], (), "brought.json is missing; it must list"),
        ([{"text": "the star", "label": n / 4} for n in range(5)], (), "numbers from 0 to 1 as labels"),
        ([{"words": "the star", "label": "a"}], (), "none of a text"),
        ([{"text": "", "label": "plain"}, *rows()], ("--test-share", "0.5"), "1 of 4 texts hold no word"),
    ],
)
def test_what_cannot_become_a_task_is_refused_with_the_reason(init, tmp_path, found, more, reason):
    zoo, err = init(write_lines(tmp_path / "brought.jsonl", found), *more)
    assert zoo is None
    assert reason in err


def test_the_manifest_is_plain_yaml_without_places_of_this_machine(init, tmp_path):
    zoo, _ = init(write_lines(tmp_path / "alone.jsonl", rows()), "--test-share", "0.5")
    text = (zoo.folder / "zoo.yaml").read_text()
    assert str(tmp_path) not in text
    assert yaml.safe_load(text)["tasks"][0]["data"] == "data/alone.jsonl"


def test_texts_without_a_word_are_left_out_by_choice(init, tmp_path):
    found = [{"text": "", "label": "plain"}, *rows()]
    zoo, out = init(write_lines(tmp_path / "alone.jsonl", found), "--test-share", "0.5", "--skip-corrupt")
    assert "1 texts hold no word and are left out" in out
    assert zoo.manifest.tasks[0].corrupt == "skip"
