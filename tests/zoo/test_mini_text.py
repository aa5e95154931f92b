"""The zoo of sentences: its grammars, its noisy labels, and its builder at a small scale."""

import dataclasses
import json

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from engine.zoo.check import check_zoo
from engine.zoo.mini_text.build import Recipe, build
from engine.zoo.mini_text.finetune import FinetuneConfig
from engine.zoo.mini_text.model import LENGTH
from engine.zoo.mini_text.pretrain import PretrainConfig
from engine.zoo.mini_text.sentences import LabelNoise, noisy_targets, partners, vocabulary, write_all, write_task
from engine.zoo.mini_text.tasks import IN_DOMAIN, OUT_OF_DOMAIN, TASKS

SMALL = {"pretrain": 40, "train": 300, "adapt": 20, "val": 12, "test": 150}


@pytest.fixture(scope="module")
def written():
    return write_all(SMALL)


def test_ten_tasks_each_with_its_classes(written):
    assert (len(IN_DOMAIN), len(OUT_OF_DOMAIN)) == (7, 3)
    for task in TASKS:
        splits = written[task.name]
        assert {split: len(part.texts) for split, part in splits.items()} == SMALL
        counts = np.bincount(splits["test"].labels, minlength=len(task.classes))
        assert counts.max() - counts.min() <= 1
        every = [text for part in splits.values() for text in part.texts]
        assert len(set(every)) == len(every)


def test_writing_again_gives_the_same_sentences(written):
    again = write_task(TASKS[0], SMALL)
    assert again["test"].texts == written[TASKS[0].name]["test"].texts


def test_every_sentence_fits_and_every_word_is_known(written):
    words = vocabulary(written)
    assert len(words) < 500
    for splits in written.values():
        found = words.encode(splits["test"].texts, LENGTH)
        assert not found.cut.any()
        assert not (found.ids[:, 0] == words.index["[UNK]"]).any()


def test_words_alone_solve_at_most_half_of_the_tasks(written):
    solved = {}
    for task in IN_DOMAIN:
        train, test = (written[task.name][split] for split in ("train", "test"))
        counter = CountVectorizer(token_pattern=r"\S+")
        seen = counter.fit_transform([" ".join(text) for text in train.texts])
        judge = LogisticRegression(max_iter=300).fit(seen, train.labels)
        solved[task.name] = judge.score(counter.transform([" ".join(t) for t in test.texts]), test.labels)
    assert sum(share > 0.95 for share in solved.values()) <= len(IN_DOMAIN) / 2, solved


def test_a_hasty_annotator_names_what_words_suggest(written):
    task = TASKS[1]
    split = written[task.name]["test"]
    noise = LabelNoise(floor=0.2, slope=0.5, spread=0.0)
    targets = noisy_targets(task, split, noise, seed=1)
    rows = np.arange(len(split.labels))
    np.testing.assert_allclose(targets.sum(axis=1), 1, atol=1e-5)
    misled = split.decoys >= 0
    assert 0.3 < misled.mean() < 0.7
    assert (split.decoys[misled] != split.labels[misled]).all()
    assert (targets[rows, np.maximum(split.decoys, 0)][misled] >= 0.5 * 0.2 - 1e-6).all()
    partner = partners(task, 1)[split.labels]
    wrong = 0.2 + 0.5 * split.hardness
    alone = ~misled
    np.testing.assert_allclose(
        targets[rows, partner][alone], (wrong * (0.85 + 0.15 / len(task.classes)))[alone], rtol=1e-4
    )


def test_the_builder_makes_a_zoo_that_passes_its_checks(tmp_path):
    recipe = Recipe(
        pretrain=PretrainConfig(steps=3, batch=16),
        experts=FinetuneConfig(steps=2, batch=14),
        multitask=FinetuneConfig(steps=2, batch=14),
        sizes={**SMALL, "train": 30, "test": 20},
    )
    build(tmp_path / "zoo", recipe=recipe, progress=lambda line: None)
    said = check_zoo(str(tmp_path / "zoo"), lambda fraction, message="": None)
    assert any("texts of up to 26 tokens" in line for line in said)
    assert any("rows that the base learned with its noisy labels" in line for line in said)
    record = json.loads((tmp_path / "zoo/build.json").read_text())
    assert set(record["accuracy"]["test"]["average"]) == {
        "experts",
        "base",
        "weight_average",
        "task_arithmetic_0.3",
        "multitask",
    }
    assert record["pretrain"] == json.loads(json.dumps(dataclasses.asdict(recipe.pretrain)))
    sizes = sum(file.stat().st_size for file in (tmp_path / "zoo").rglob("*.safetensors"))
    assert sizes < 9_000_000
