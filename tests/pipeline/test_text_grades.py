"""Experts that give numbers: regressions imported, graded, scored by correlation, and exported again."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertForSequenceClassification

from engine.errors import DataError, RecipeError
from engine.manifest import Task, read_manifest
from engine.pipeline.export.model import export_model
from engine.pipeline.local import make_view, run_recipe
from engine.pipeline.offered import offered_views
from engine.pipeline.planners import plan_request
from engine.pipeline.run.plan import steps_of
from engine.pipeline.studies.sweep import choose_split
from engine.pipeline.views.measures import TASK_MEASURES
from engine.recipe import ExpertChoice, parse_recipe
from engine.store import Store
from engine.zoo.check import check_zoo
from engine.zoo.folder import Zoo
from engine.zoo.importing.convert import import_zoo
from engine.zoo.texts.grades import graded_head, grades_between, nearest, number_head
from engine.zoo.texts.tables import TextTable
from tests.made_text_models import CLASSIFIERS, NOUNS, VOCABULARY, classifiers, moved, save, t5, texts
from tests.pipeline.test_text_import import LENGTH, ask, silent


def numbers(path, low, high, count=18):
    """Pairs of texts with how alike they are, to a tenth."""
    generator, lines = torch.Generator().manual_seed(5), []
    for split, rows in (("test", count), ("val", 6), ("adapt", count)):
        for _ in range(rows):
            words = torch.randint(5, len(VOCABULARY), (8,), generator=generator).tolist()
            label = round(low + (high - low) * float(torch.rand((), generator=generator)), 1)
            pair = {"sentence1": " ".join(VOCABULARY[w] for w in words[:5]), "sentence2": VOCABULARY[words[5]]}
            lines.append(json.dumps({"split": split, **pair, "label": label}))
    path.write_text("\n".join(lines), "utf-8")
    return path


def likeness(folder):
    """A BERT with one output, from the same base as the classifiers."""
    *_, sizes = CLASSIFIERS["bert"]
    torch.manual_seed(9)
    expert = BertForSequenceClassification(BertConfig(**sizes, num_labels=1, problem_type="regression"))
    base = AutoModelForSequenceClassification.from_pretrained(folder / "base", num_labels=1)
    expert.bert.load_state_dict(base.bert.state_dict(), strict=False)
    expert.classifier.weight.data.mul_(30)
    expert.classifier.bias.data.fill_(2.5)
    return save(moved(expert, 7, 0.1), folder / "stsb")


@pytest.fixture(scope="module")
def brought(tmp_path_factory):
    """A zoo with a classifier and a regression, and its run with Surgery."""
    folder = tmp_path_factory.mktemp("graded")
    base, experts = classifiers("bert", folder, ("nouns",))
    experts["stsb"] = likeness(folder)
    data = {"nouns": str(texts(folder / "n.jsonl", NOUNS)), "stsb": str(numbers(folder / "s.jsonl", 0, 5))}
    summary = import_zoo(ask(folder, base, experts, data=data), silent)
    recipe = {"zoo": str(folder / "zoo"), "merge": {"method": "task_arithmetic", "params": {"scaling": 0.3}}}
    recipe["calibrators"] = [{"method": "surgery", "params": {"rank": 4, "steps": 20, "batch_size": 8}}]
    store = Store(folder / "store")
    report = run_recipe(parse_recipe(recipe), store, out=folder / "run")
    return folder, Zoo.open(str(folder / "zoo")), report, store, summary


def theirs(folder, zoo):
    """Numbers that transformers' own model gives for the test texts."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert model.num_labels == 1
    given = zoo.data["stsb"].texts("test")
    batch = AutoTokenizer.from_pretrained(folder)(
        [first for first, _ in given],
        [second for _, second in given],
        padding="max_length",
        max_length=LENGTH,
        truncation=True,
        return_tensors="pt",
    )
    with torch.no_grad():
        return model(**batch).logits[:, 0].double().numpy()


def test_grades_have_a_step_that_people_would_choose():
    assert grades_between(0, 5, 32) == tuple(round(0.2 * place, 1) for place in range(26))
    assert len(grades_between(0, 5)) == 101
    assert grades_between(0.1, 0.9, 9) == tuple(round(0.1 * place, 1) for place in range(1, 10))
    assert grades_between(-40, 170, 32)[:2] == (-40, -30)
    for low, high in ((1, 1), (0, float("inf")), (2, 1)):
        with pytest.raises(DataError, match="no scale"):
            grades_between(low, high)


def test_labels_go_to_the_nearest_grade_and_none_beyond_them():
    grades = (0.0, 0.5, 1.0)
    assert nearest([0.1, 0.3, "0.9", 1.2], grades, "t.csv").tolist() == [0, 1, 2, 2]
    with pytest.raises(DataError, match="label 7, and grades from 0 to 1"):
        nearest([0.1, 7], grades, "t.csv")
    with pytest.raises(DataError, match="'much', which is no number"):
        nearest([0.1, "much"], grades, "t.csv")


def test_the_best_grade_is_the_one_nearest_to_the_number_and_the_head_comes_back():
    generator = torch.Generator().manual_seed(1)
    weight, bias, grades = torch.randn(1, 8, generator=generator), torch.tensor([0.4]), grades_between(-2, 3)
    features = torch.randn(200, 8, generator=generator)
    rows, offsets = graded_head(weight, bias, grades)
    said = (features @ rows.T + offsets).argmax(1).numpy()
    expected = np.clip((features @ weight.T + bias)[:, 0].numpy(), -2, 3)
    assert np.abs(np.array(grades)[said] - expected).max() <= 0.025 + 1e-5
    again = number_head(rows, offsets, grades)
    assert torch.allclose(again[0], weight, atol=1e-6)
    assert torch.allclose(again[1], bias, atol=1e-6)


def test_a_regression_is_scored_by_correlation_and_has_no_accuracy(brought):
    folder, zoo, report, store, summary = brought
    task = zoo.manifest.task_table["stsb"]
    assert (task.measure, task.grades[1] - task.grades[0]) == ("spearman", pytest.approx(0.05))
    assert f"{len(task.grades)} grades from" in json.dumps(summary)
    truth = np.array(task.grades)[zoo.data["stsb"].labels("test")]
    number = theirs(folder / "stsb", zoo)
    made = make_view(TASK_MEASURES, TASK_MEASURES.ask(report.recipe), store)
    found = json.loads((made / "measures.json").read_text())
    states = found["tasks"]["stsb"]["states"]
    assert set(states["expert"]) == {"pearson", "spearman"}
    assert "right and wrong" in found["tasks"]["stsb"]["why"]
    table = pd.read_parquet(folder / "run" / "samples.parquet")
    rows = table[(table.task == "stsb") & (table.state == "expert") & (table.split == "evaluate")]["index"].to_numpy()
    number = np.clip(number, task.grades[0], task.grades[-1])[rows]
    assert states["expert"]["pearson"] == pytest.approx(100 * pearsonr(truth[rows], number).statistic, abs=3)
    assert states["expert"]["spearman"] == pytest.approx(100 * spearmanr(truth[rows], number).statistic, abs=5)
    assert found["of"] == "mean of unlike measures (accuracy, spearman)"
    for state in ("pretrained", "merged", "expert", "surgery"):
        assert report.accuracy[state]["stsb"] is None
        assert report.average[state].within == pytest.approx(report.accuracy[state]["nouns"])
    assert report.bias["surgery"].l1["stsb"] is not None  # features are repaired whatever they are read for
    assert any("asks for a number" in warning and "no accuracy" in warning for warning in report.warnings)
    assert any("asks for a number" in finding for finding in check_zoo(str(zoo.folder), silent))


SCORED = {
    "blame": {"images": 8},
    "interpolation": {"points": 3, "images": 8},
    "remedies": {"images": 8},
    "scaling": {"scalings": [0.0, 1.0], "images": 8},
    "shift": {"images": 8},
    "stitching": {"images": 8},
    "transplant": {"images": 8},
}


def asked(report, view, **settings):
    return {"recipe": report.recipe.model_dump(mode="json"), **SCORED.get(view, {}), **settings}


@pytest.mark.parametrize("view", SCORED)
def test_views_of_accuracies_leave_numbers_out(brought, view):
    _, _, report, store, _ = brought
    plan, each = plan_request(view, asked(report, view), store), {"interpolation": "path"}.get(view, view)
    assert {step.params.task for step in plan.steps if step.name == each} == {"nouns"}
    if view != "interpolation":
        with pytest.raises(RecipeError, match=r"'stsb' asks for a number.* Choose another task"):
            plan_request(view, asked(report, view, task="stsb"), store)
    alone = report.recipe.model_copy(update={"experts": (ExpertChoice(name="stsb"),)})
    with pytest.raises(RecipeError, match=r"One expert alone|All of the experts' tasks ask for numbers"):
        plan_request(view, {**asked(report, view), "recipe": alone.model_dump(mode="json")}, store)


@pytest.mark.parametrize("view", ["sharpness", "spawning"])
def test_the_first_task_is_one_of_classes(brought, view):
    _, _, report, store, _ = brought
    with pytest.raises(RecipeError, match="'stsb' asks for a number"):
        plan_request(view, asked(report, view, task="stsb"), store)


def test_views_of_distances_keep_numbers(brought):
    _, _, report, store, _ = brought
    for view in ("depth", "attention", "energy"):
        plan = plan_request(view, asked(report, view, images=8), store)
        steps = [step.params for step in plan.steps if step.name == view]
        tasks = list(steps[0].data) if view == "energy" else [params.task for params in steps]
        assert tasks == ["nouns", "stsb"], view


def test_pages_open_with_views_of_classes(brought):
    _, _, report, *_ = brought
    offered = {view.name: request for view, request in offered_views(report)}
    assert {"interpolation", "energy", "depth"} <= set(offered)
    assert not {"disentanglement", "connection", "by_recipe", "sharpness"} & set(offered), "a pair of tasks of classes"


def test_a_graded_answer_is_the_number_of_transformers_own_model(brought):
    folder, zoo, *_ = brought
    table = pd.read_parquet(folder / "run" / "samples.parquet")
    rows = table[(table.task == "stsb") & (table.state == "expert") & (table.split == "evaluate")]
    number = theirs(folder / "stsb", zoo)[rows["index"].to_numpy()]
    grades = np.array(zoo.manifest.task_table["stsb"].grades)
    assert np.abs(grades[rows.prediction.to_numpy()] - np.clip(number, grades[0], grades[-1])).max() <= 0.025 + 1e-4


def test_a_regression_goes_back_out_as_one(brought, tmp_path):
    folder, *_ = brought
    export_model(folder / "run", tmp_path / "out", "hf", Store().digest_file, task="stsb")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["problem_type"], config["id2label"]) == ("regression", {"0": "LABEL_0"})
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    expert = AutoModelForSequenceClassification.from_pretrained(folder / "stsb")
    assert torch.allclose(model.classifier.weight, expert.classifier.weight, atol=1e-6)
    assert torch.allclose(model.classifier.bias, expert.classifier.bias, atol=1e-6)


def test_numbers_in_words_are_ranked_and_scored_by_correlation(tmp_path):
    base, experts = t5(tmp_path, ("stsb", "nouns"))
    words = str(texts(tmp_path / "n.jsonl", NOUNS, numbers=False))
    data = {"stsb": str(numbers(tmp_path / "s.jsonl", 1, 3)), "nouns": words}
    import_zoo(ask(tmp_path, base, experts, data=data, length=128), silent)
    task = read_manifest(tmp_path / "zoo").task_table["stsb"]
    assert task.classes[:3] == ("1.0", "1.1", "1.2")
    assert len(task.classes) <= 21
    report = run_recipe(
        parse_recipe({"zoo": str(tmp_path / "zoo"), "merge": {"method": "ties"}}), Store(tmp_path / "s")
    )
    assert report.accuracy["merged"]["stsb"] is None
    assert report.accuracy["merged"]["nouns"] is not None


def test_what_does_not_fit_a_regression_is_refused(tmp_path, brought):
    folder, *_ = brought
    base, classes = folder / "base", folder / "nouns"
    named = texts(tmp_path / "w.jsonl", NOUNS, numbers=False)
    with pytest.raises(Exception, match=r"gives a number for a text; its texts have circle, square, star"):
        import_zoo(ask(tmp_path, base, {"stsb": folder / "stsb"}, data={"stsb": str(named)}), silent)
    asked = ask(tmp_path, base, {"nouns": classes}, data={"nouns": str(numbers(tmp_path / "s.jsonl", 0, 5))})
    with pytest.raises(Exception, match=r"numbers from .* as labels; the classifier of 'nouns' says one of 3"):
        import_zoo(asked, silent)
    alone = TextTable(tmp_path / "s.jsonl")
    with pytest.raises(DataError, match="List `grades` for the task"):
        alone.labels("test")
    for wrong, message in (
        ({"grades": [0, 1], "measure": "accuracy"}, "pearson or spearman"),
        ({"grades": [1, 0], "measure": "pearson"}, "each above the one before"),
        ({"grades": [0, 1], "classes": ["a", "b", "c"], "measure": "pearson"}, "as many `grades` as classes"),
    ):
        with pytest.raises(ValueError, match=message):
            Task.model_validate({"name": "t", "domain": "in", **wrong})


def test_numbers_alone_leave_nothing_to_choose_by(brought):
    _, zoo, _, store, _ = brought
    recipe = parse_recipe({"zoo": str(zoo.folder), "experts": ["stsb"]})
    choice = choose_split([steps_of(recipe, store)])
    assert choice.split is None
    assert "are numbers, so there is no accuracy to choose by" in choice.reason
