"""Published accuracies: facts of the descriptions, the comparison with a run, and where it is told."""

import json

import pytest

from engine.catalog.datasets import MERGED_8, OUT_OF_DOMAIN_13
from engine.manifest import Manifest, known_zoos, locate_description, read_manifest
from engine.report import SampleCounts
from engine.zoo.described.published import compare, in_words, lines
from tests.made_run import made_report

DESCRIBED = [zoo.name for zoo in known_zoos() if zoo.described]
STL = 0.2  # points; experts of STL-10 are published as slightly worse than the pretrained model
# Means of rows as the sources print them; where a printed mean is cut off, the row's own.
AVERAGES = {
    ("clip-vit-b32-ta8-ood13", "expert"): 90.38,
    ("clip-vit-l14-ta8", "pretrained"): 64.92,
    ("task-arithmetic-b32", "expert"): 90.5,
    ("task-arithmetic-b32", "pretrained"): 48.06,  # printed as 48.0
    ("task-arithmetic-l14", "expert"): 94.2,
    ("flan-t5-base-glue8", "expert"): (86.4 * 8 - 88.70) / 7,  # printed with Spearman for STS-B among them
    ("flan-t5-base-glue8", "pretrained"): (75.735160 * 8 - 62.190453) / 7,
    ("task-arithmetic-l14", "pretrained"): 64.5,
    ("task-arithmetic-b16", "pretrained"): 55.09,  # printed as 55.0
}


def manifest_of(name):
    return read_manifest(locate_description(name))


@pytest.mark.parametrize("name", DESCRIBED)
def test_every_description_names_what_its_authors_published(name):
    manifest = manifest_of(name)
    published = manifest.published
    assert published.source
    trained = {e.task for e in manifest.experts if not manifest.task_table[e.task].grades}
    assert set(published.accuracy["expert"]) == trained
    if "pretrained" not in published.accuracy:  # of classifiers, which the base has none of
        assert manifest.modality == "text"
        return
    assert trained <= set(published.accuracy["pretrained"]) <= set(manifest.task_table)
    for task in trained:
        before, after = (published.accuracy[state][task] for state in ("pretrained", "expert"))
        assert 0 < before < after + STL <= 100 + STL


@pytest.mark.parametrize(("name", "state"), AVERAGES)
def test_numbers_have_the_means_that_were_printed(name, state):
    values = manifest_of(name).published.accuracy[state]
    inside = [value for task, value in values.items() if manifest_of(name).task_table[task].domain == "in"]
    assert sum(inside) / len(inside) == pytest.approx(AVERAGES[name, state], abs=0.051)


@pytest.mark.parametrize("name", [name for name in DESCRIBED if name.endswith("-ood13")])
def test_out_of_domain_tasks_are_those_of_the_paper(name):
    tasks = manifest_of(name).tasks
    assert {task.dataset for task in tasks if task.domain == "out"} == set(OUT_OF_DOMAIN_13)
    assert {task.dataset for task in tasks if task.domain == "in"} == set(MERGED_8)
    assert all(task.data for task in tasks)


def test_every_size_has_eight_fourteen_and_twenty_experts_and_the_largest_has_the_papers():
    assert {f"clip-vit-{size}-ta{count}" for size in ("b32", "b16", "l14") for count in (8, 14, 20)} <= set(DESCRIBED)
    largest = manifest_of("task-arithmetic-h14-ood13")
    assert largest.backbone.architecture == "ViT-H-14"
    assert largest.backbone.quick_gelu is False
    assert largest.published.accuracy["expert"]["Cars"] == 95.1


@pytest.fixture
def manifest():
    names = ("digits", "signs", "scenes")
    tasks = [{"name": name, "domain": "in", "classes": ["a", "b"]} for name in names]
    backbone = {"architecture": "ViT-B-32", "weights": "openai"}
    accuracy = {
        "pretrained": {"digits": 30.2, "signs": 31.0},
        "expert": {"digits": 95.0, "signs": 99.5, "scenes": 90.0},
    }
    published = {"source": "A paper, Table 1", "url": "https://example.org/table", "accuracy": accuracy}
    return Manifest.model_validate(
        {"format": 1, "name": "made", "backbone": backbone, "tasks": tasks, "published": published}
    )


def test_differences_are_measured_less_published_and_judged_by_the_sample(manifest):
    rows = {(row.state, row.task): row for row in compare(manifest, made_report())}
    assert set(rows) == {("pretrained", "digits"), ("pretrained", "signs"), ("expert", "digits"), ("expert", "signs")}
    assert rows["pretrained", "digits"].difference == pytest.approx(-0.2)
    assert rows["expert", "signs"].difference == pytest.approx(97.0 - 99.5)
    assert rows["expert", "digits"].agrees
    samples = {name: SampleCounts(adapt=0, evaluate=1000, available=1000) for name in ("digits", "signs", "scenes")}
    whole = {(row.state, row.task): row for row in compare(manifest, made_report(samples=samples))}
    assert whole["expert", "signs"].margin == 0.5
    assert not whole["expert", "signs"].agrees
    few = rows["pretrained", "signs"]
    by_hand = 196 * (0.31 * 0.69 / few.images * (few.available - few.images) / (few.available - 1)) ** 0.5
    assert few.margin == pytest.approx(0.5 + by_hand)
    text = in_words(list(rows.values()))
    assert "the experts' accuracies differ from the published ones by -1.3 points" in text
    assert "most on signs (-2.5)" in text


def test_a_zoo_without_published_accuracies_says_nothing(manifest):
    plain = manifest.model_copy(update={"published": None})
    assert compare(plain, made_report()) == []
    assert lines(plain, made_report()) == []
    assert "published" not in plain.model_dump(mode="json")
    assert json.loads(manifest.model_dump_json())["published"]["url"] == "https://example.org/table"
