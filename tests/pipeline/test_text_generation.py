"""T5 and GPT-2: imported, merged, scored where classes are answers, and loaded again by transformers."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from engine.pipeline.export.model import export_model
from engine.pipeline.local import make_view, run_recipe
from engine.pipeline.run.findings import findings
from engine.pipeline.views.exact_match import EXACT_MATCH
from engine.recipe import parse_recipe
from engine.store import Store
from engine.weights import encoder_part, open_weights
from engine.zoo.check import check_zoo
from engine.zoo.folder import Zoo
from engine.zoo.importing.convert import import_zoo
from tests.made_text_models import NOUNS, gpt2, t5, texts
from tests.pipeline.test_text_import import LENGTH, TOLERANCE, ask, ours, silent


def run(folder, **more):
    recipe = parse_recipe({"zoo": str(folder / "zoo"), "merge": {"method": "ties"}, **more})
    return run_recipe(recipe, Store(folder / "store"), out=folder / "run")


@pytest.fixture(scope="module", params=["tied", "untied"])
def asked(request, tmp_path_factory):
    """A zoo of T5s with answers for classes, its run, and the experts' folders."""
    folder = tmp_path_factory.mktemp(request.param)
    base, experts = t5(folder, tied=request.param == "tied")
    data = {"nouns": str(texts(folder / "n.jsonl", NOUNS, numbers=False))}
    data["answers"] = str(texts(folder / "a.jsonl", ("yes", "no the star"), numbers=False))
    data["outside"] = str(texts(folder / "o.jsonl", ("red", "blue"), numbers=False))  # no expert was tuned on it
    import_zoo(ask(folder, base, experts, data=data), silent)
    return folder, Zoo.open(str(folder / "zoo")), run(folder), experts


def likelihoods(folder, zoo, task):
    """Σ log p of every answer, as transformers computes them: (n, answers)."""
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    given = [text for text, _ in zoo.data[task].texts("test")]
    batch = tokenizer(given, padding="max_length", max_length=LENGTH, truncation=True, return_tensors="pt")
    batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
    columns = []
    for answer in zoo.manifest.task_table[task].classes:
        labels = tokenizer([answer] * len(given), return_tensors="pt").input_ids
        with torch.no_grad():
            logs = model(**batch, labels=labels).logits.log_softmax(-1)
        columns.append(logs.gather(2, labels[:, :, None]).sum((1, 2)))
    return torch.stack(columns, dim=1)


def test_answers_are_ranked_as_transformers_ranks_them(asked):
    _, zoo, report, experts = asked
    for task, folder in experts.items():
        expected = likelihoods(folder, zoo, task)
        assert torch.allclose(ours(zoo, zoo.weights(task), task), expected, atol=1e-4)
        labels = torch.as_tensor(zoo.data[task].labels("test"))
        assert report.accuracy["expert"][task] == pytest.approx(
            100 * float((expected.argmax(1) == labels).double().mean())
        )


def test_a_merged_t5_goes_back_out(asked, tmp_path):
    folder, zoo, report, _ = asked
    export_model(folder / "run", tmp_path / "out", "hf", Store().digest_file)
    merged = encoder_part(open_weights(folder / "run" / "merged.safetensors"))
    assert zoo.manifest.task_table["outside"].domain == "out"
    for task in ("nouns", "answers", "outside"):
        expected = likelihoods(tmp_path / "out", zoo, task)
        assert torch.allclose(ours(zoo, merged, task), expected, atol=1e-4)
        right = expected.argmax(1) == torch.as_tensor(zoo.data[task].labels("test"))
        assert report.accuracy["merged"][task] == pytest.approx(100 * float(right.double().mean()))
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert torch.equal(model.shared.weight, merged.tensor("t5.shared.weight"))
    written = set(open_weights(tmp_path / "out" / "model.safetensors").names)
    assert ("lm_head.weight" in written) is (folder.name.startswith("untied"))


def test_answers_are_written_as_transformers_writes_them(asked):
    folder, zoo, report, experts = asked
    made = make_view(EXACT_MATCH, EXACT_MATCH.ask(report.recipe, images=18), Store(folder / "store"))
    for task, place in experts.items():
        found = EXACT_MATCH.read(made)["tasks"][task]
        model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(place).eval(), AutoTokenizer.from_pretrained(place)
        given = [text for text, _ in zoo.data[task].texts("test")]
        batch = tokenizer(given, padding="max_length", max_length=LENGTH, truncation=True, return_tensors="pt")
        ids, mask = batch["input_ids"], batch["attention_mask"]
        wrote = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=10, do_sample=False, num_beams=1)
        said = [text.strip() for text in tokenizer.batch_decode(wrote, skip_special_tokens=True)]
        assert [text["expert"] for text in found["texts"]] == [said[text["index"]] for text in found["texts"]]
        right = [text["expert"] == text["answer"] for text in found["texts"]]
        assert found["percent"]["expert"] == pytest.approx(100 * sum(right) / len(right))


def test_calibrators_of_features_are_refused_where_classes_are_answers(asked):
    _, zoo, *_ = asked
    recipe = parse_recipe({"zoo": str(zoo.folder), "calibrators": [{"method": "surgery"}]})
    errors = [found.text for found in findings(recipe, zoo) if found.level == "error"]
    assert len(errors) == 1
    assert "log-likelihoods of answers" in errors[0]


def test_a_zoo_of_answers_is_checked(asked):
    said = check_zoo(str(asked[1].folder), silent)
    assert any("nouns: 18 test" in line for line in said)


def test_gpt2_is_merged_and_goes_back_out(tmp_path):
    base, experts = gpt2(tmp_path)
    import_zoo(ask(tmp_path, base, experts), silent)
    report = run(tmp_path, merge={"method": "task_arithmetic", "params": {"scaling": 0.5}})
    assert not report.accuracy
    export_model(tmp_path / "run", tmp_path / "out", "hf", Store().digest_file)
    found, start, one, two = (
        AutoModelForCausalLM.from_pretrained(place).eval() for place in (tmp_path / "out", base, *experts.values())
    )
    with torch.no_grad():
        for own, first, second in zip(start.parameters(), one.parameters(), two.parameters(), strict=True):
            own.copy_(own + 0.5 * (first - own) + 0.5 * (second - own))
        ids = torch.tensor([[5, 6, 7, 8]])
        assert torch.allclose(found(ids).logits, start(ids).logits, atol=TOLERANCE)
