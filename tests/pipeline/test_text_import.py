"""Text models as people have them become a zoo, are merged and scored, and go back out to transformers."""

import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from engine.pipeline.export.model import export_model
from engine.pipeline.local import run_recipe
from engine.recipe import parse_recipe
from engine.report import read_report
from engine.store import Store
from engine.weights import encoder_part, open_weights
from engine.zoo.check import check_zoo
from engine.zoo.encoders.backbone import architecture, load_encoder
from engine.zoo.folder import Zoo
from engine.zoo.importing.convert import import_zoo
from engine.zoo.importing.request import parse_request
from tests.made_text_models import CLASSIFIERS, NOUNS, classifiers, texts

TOLERANCE = 1e-5
LENGTH = 12


def silent(fraction, message=""):
    pass


def ask(folder, base, experts, **more):
    """A request for an import."""
    items = [{"name": name, "path": str(path)} for name, path in experts.items()]
    document = {"base": str(base), "experts": items, "name": "brought", "out": str(folder / "zoo"), "length": LENGTH}
    return parse_request({**document, **more})


@pytest.fixture(scope="module", params=CLASSIFIERS)
def brought(request, tmp_path_factory):
    """A zoo of one family, with the folders that it was made of."""
    folder = tmp_path_factory.mktemp(request.param)
    base, experts = classifiers(request.param, folder)
    data = {
        "nouns": str(texts(folder / "n.jsonl", NOUNS)),
        "answers": str(texts(folder / "a.jsonl", ("y", "n"), pair=True)),
    }
    summary = import_zoo(ask(folder, base, experts, data=data), silent)
    return folder, Zoo.open(str(folder / "zoo")), experts, summary


@pytest.fixture(scope="module")
def ran(brought, tmp_path_factory):
    """A finished run of that zoo."""
    folder, zoo, *_ = brought
    calibrators = [{"method": "surgery", "params": {"rank": 4, "steps": 40, "batch_size": 8}}]
    recipe = parse_recipe({"zoo": str(zoo.folder), "merge": {"method": "ties"}, "calibrators": calibrators})
    run_recipe(recipe, Store(folder / "store"), out=folder / "run")
    return folder / "run"


def theirs(folder, zoo, task):
    """The logits that transformers computes of a task's test texts, with its own tokenizer."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pairs = zoo.data[task].texts("test")
    second = [text for _, text in pairs] if pairs[0][1] else None
    batch = tokenizer(
        [text for text, _ in pairs],
        second,
        padding="max_length",
        max_length=LENGTH,
        return_tensors="pt",
        truncation=True,
    )
    if "token_type_ids" in batch and model.config.model_type != "bert":
        del batch["token_type_ids"]
    with torch.no_grad():
        return model(**batch).logits


def ours(zoo, weights, task):
    """The logits that the engine computes of the same texts."""
    encoder = load_encoder(architecture(zoo.folder, zoo.manifest), weights)
    samples = torch.as_tensor(zoo.data[task].samples("test"))
    with torch.no_grad():
        return zoo.heads([task])[0][task].logits(encoder(samples)).float()


def test_experts_answer_as_in_transformers(brought):
    _, zoo, experts, _ = brought
    for task, folder in experts.items():
        assert torch.allclose(ours(zoo, zoo.weights(task), task), theirs(folder, zoo, task), atol=TOLERANCE)


def test_what_was_recognised_is_said(brought):
    _, zoo, _, summary = brought
    assert summary["faults"] == []
    assert "2 blocks of width 16" in summary["architecture"]
    notes = [note for row in summary["rows"] for note in row["notes"]]
    assert any("a classifier of 3 classes: circle, square, star" in note for note in notes)
    said = check_zoo(str(zoo.folder), silent)
    assert any(
        "nouns: 18 test, 18 adapt, 6 val texts" in line or "nouns: 18 test, 6 val, 18 adapt" in line for line in said
    )


def test_a_run_scores_experts_as_transformers_does(brought, ran):
    _, zoo, experts, _ = brought
    report = read_report(ran)
    for task, folder in experts.items():
        labels = torch.as_tensor(zoo.data[task].labels("test"))
        right = (theirs(folder, zoo, task).argmax(1) == labels).double().mean()
        assert report.samples[task].evaluate == report.samples[task].available == len(labels)
        assert report.accuracy["expert"][task] == pytest.approx(100 * float(right))
        assert "classifier of the expert" in report.tasks[task].head
    assert set(report.states()) == {"pretrained", "merged", "surgery", "expert"}
    assert report.bias["surgery"].l1["nouns"] < report.bias["merged"].l1["nouns"]


def test_a_merge_goes_back_out_with_equal_logits(brought, ran, tmp_path):
    _, zoo, *_ = brought
    merged = encoder_part(open_weights(ran / "merged.safetensors"))
    for task in ("nouns", "answers"):
        export_model(ran, tmp_path / task, "hf", Store().digest_file, task=task)
        assert torch.allclose(ours(zoo, merged, task), theirs(tmp_path / task, zoo, task), atol=TOLERANCE)
    config = json.loads((tmp_path / "nouns" / "config.json").read_text())
    assert config["id2label"] == {"0": "circle", "1": "square", "2": "star"}
