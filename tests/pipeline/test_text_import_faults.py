"""Everything that can be wrong with text models and texts is refused with what was found, expected, and to be done."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ZooError
from engine.zoo.folder import Zoo
from engine.zoo.importing.convert import import_zoo
from engine.zoo.importing.survey import survey
from engine.zoo.texts.families import ANSWERS
from engine.zoo.texts.pieces import Pieces
from tests.made_text_models import NOUNS, VOCABULARY, classifiers, gpt2, t5, texts, tokenizer
from tests.pipeline.test_text_import import ask, silent


@pytest.fixture
def made(tmp_path):
    """A BERT and its experts, to be spoilt."""
    return classifiers("bert", tmp_path)


def faults(request):
    return "\n".join(fault.text for fault in survey(request, silent).faults)


def change(folder, edit):
    """Rewrite the tensors of a model."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def test_another_vocabulary_is_refused_with_the_first_difference(made, tmp_path):
    base, experts = made
    words = list(VOCABULARY)
    words[9], words[11] = words[11], words[9]
    tokenizer(words).save_pretrained(experts["nouns"])
    assert "token 9 is 'a' in the base and 'blue' in the expert" in faults(ask(tmp_path, base, experts))


def test_other_casing_is_refused(made, tmp_path):
    base, experts = made
    tokenizer(lower=True).save_pretrained(experts["answers"])
    said = faults(ask(tmp_path, base, experts))
    assert "the normalizer differs: null in the base" in said
    assert "Lowercase" in said


def test_another_special_word_is_refused(made, tmp_path):
    base, experts = made
    settings = json.loads((experts["nouns"] / "tokenizer_config.json").read_text())
    (experts["nouns"] / "tokenizer_config.json").write_text(json.dumps({**settings, "pad_token": "<unk>"}))
    assert "the pad token is '<pad>' in the base and '<unk>' in the expert" in faults(ask(tmp_path, base, experts))


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("tokenizer_config.json", {"model_max_length": "long"}, "The tokenizer in nouns cannot be read"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9" * 5000: {"content": "x"}}}, "ids up to 5,000,000"),
        ("added_tokens.json", {"x": 10**9}, "added_tokens.json gives a token the id 1,000,000,000"),
        ("tokenizer.json", {"added_tokens": [{"id": 10**9, "content": "x"}]}, "the id 1,000,000,000; ids up to"),
        ("tokenizer.json", {"model": {"type": "WordLevel", "vocab": {"a": 10**9}, "unk_token": "a"}}, "ids up to"),
    ],
)
def test_a_tokenizer_that_nobody_has_is_refused_before_it_fills_the_memory(made, tmp_path, file, change, message):
    base, experts = made
    path = experts["nouns"] / file
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **change}))
    assert message in faults(ask(tmp_path, base, experts))
    if file == "tokenizer.json":
        with pytest.raises(ZooError, match="ids up to 5,000,000"):
            Pieces.read(path, (0, 1, 2, 3, 4))


def test_a_config_that_transformers_refuses_is_a_fault(tmp_path):
    base, experts = t5(tmp_path)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "classifier_dropout": "/etc/passwd"}))
    assert "No t5 can be made of this config" in faults(ask(tmp_path, base, experts))


def test_of_a_vocabulary_that_grew_the_bases_rows_are_kept_and_said(made, tmp_path):
    base, experts = made
    tokenizer((*VOCABULARY, "tomorrow")).save_pretrained(experts["nouns"])

    def grow(tensors):
        table = tensors["bert.embeddings.word_embeddings.weight"]
        tensors["bert.embeddings.word_embeddings.weight"] = torch.cat([table, table[:2]])

    change(experts["nouns"], grow)
    before = load_file(experts["nouns"] / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    summary = import_zoo(ask(tmp_path, base, experts), silent)
    assert any("has 1 words that the base does not know" in text for text in summary["warnings"])
    kept = Zoo.open(str(tmp_path / "zoo")).weights("nouns").tensor("bert.embeddings.word_embeddings.weight")
    assert torch.equal(kept, before[:-2])


def test_more_rows_without_more_words_are_refused(made, tmp_path):
    base, experts = made

    def grow(tensors):
        table = tensors["bert.embeddings.word_embeddings.weight"]
        tensors["bert.embeddings.word_embeddings.weight"] = torch.cat([table, table[:2]])

    change(experts["nouns"], grow)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (experts["nouns"] / name).unlink()
    said = faults(ask(tmp_path, base, experts))
    assert "of shape (26, 16); the base has (24, 16)" in said


def test_a_base_without_its_tokenizer_or_pooler_is_refused(made, tmp_path):
    base, experts = made
    kept = {name: (base / name).read_text() for name in ("tokenizer.json", "tokenizer_config.json")}
    for name in kept:
        (base / name).unlink()
    assert "base holds no tokenizer" in faults(ask(tmp_path, base, experts))
    for name, text in kept.items():
        (base / name).write_text(text)
    change(base, lambda tensors: [tensors.pop(name) for name in list(tensors) if "pooler" in name])
    assert "saved without its pooler" in faults(ask(tmp_path, base, experts))


def test_a_tokenizer_with_more_words_than_the_table_has_rows_is_refused(made, tmp_path):
    base, experts = made
    tokenizer((*VOCABULARY, *(f"word{number}" for number in range(20)))).save_pretrained(base)
    assert "tokenizer has 37 tokens, its table of embeddings 24 rows" in faults(ask(tmp_path, base, experts))


def test_code_in_a_repository_is_never_run(made, tmp_path):
    base, experts = made
    mark = tmp_path / "ran"
    (base / "evil.py").write_text(f"open({str(mark)!r}, 'w')")
    code = {
        "AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"],
        "AutoModel": "evil.Model",
        "AutoConfig": "evil.Config",
    }
    for name in ("config.json", "tokenizer_config.json"):
        document = json.loads((base / name).read_text())
        (base / name).write_text(json.dumps({**document, "auto_map": code}))
    import_zoo(ask(tmp_path, base, experts), silent)
    assert not mark.exists()
    assert "auto_map" not in (tmp_path / "zoo" / "config.json").read_text()


def test_experts_of_another_family_and_unknown_families_are_refused(made, tmp_path):
    base, experts = made
    config = json.loads((experts["nouns"] / "config.json").read_text())
    (experts["nouns"] / "config.json").write_text(json.dumps({**config, "model_type": "roberta"}))
    assert "Expert 'nouns' is of the kind 'roberta'; the base is a BERT" in faults(ask(tmp_path, base, experts))
    (base / "config.json").write_text(json.dumps({**config, "model_type": "deberta-v2"}))
    said = faults(ask(tmp_path, base, experts))
    assert "of the kind 'deberta-v2'; known kinds of text models are bert, roberta, distilbert, t5, gpt2" in said


def test_a_classifier_that_does_not_fit_its_texts_is_refused(made, tmp_path):
    base, experts = made
    data = {"answers": str(texts(tmp_path / "d.jsonl", NOUNS))}
    assert "holds the label 2, but there are 2 classes (0 to 1)" in faults(ask(tmp_path, base, experts, data=data))
    named = {"nouns": str(texts(tmp_path / "e.jsonl", ("dog", "cat", "cow"), numbers=False))}
    assert "Only in the data: 'cat', 'cow', 'dog'" in faults(ask(tmp_path, base, experts, data=named))
    nobody = {"weather": str(texts(tmp_path / "f.jsonl", NOUNS))}
    assert "The texts of 'weather' have no expert" in faults(ask(tmp_path, base, experts, data=nobody))


def test_a_regression_without_texts_is_merged_and_not_scored(made, tmp_path):
    base, experts = made

    def one(tensors):
        tensors["classifier.weight"], tensors["classifier.bias"] = tensors["classifier.weight"][:1], torch.zeros(1)

    change(experts["answers"], one)
    data = {"answers": str(texts(tmp_path / "d.jsonl", ("dull", "lively"), numbers=False))}
    assert "its texts have dull, lively … as labels. Choose texts with numbers" in faults(
        ask(tmp_path, base, experts, data=data)
    )
    summary = import_zoo(ask(tmp_path, base, experts), silent)
    notes = [note for row in summary["rows"] for note in row["notes"]]
    assert any("no texts say on which scale: it is merged and not scored" in note for note in notes)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([{"text": "the circle", "label": 0}, {"text": "  ", "label": 1}], "1 of 2 texts hold no word"),
        ([{"sentence2": "the circle", "label": 0}], "It has `sentence2`, and no first part for it"),
        ([{"text": "a star", "label": 0}, {"text": "a star"}], "test text 1 has no label"),
        ([{"text": "a star", "label": 5}], "holds the label 5, but there are 3 classes"),
        ([{"text": 7, "label": 0}], "has a `text` that is no text"),
        ([{"words": "a star", "label": 0}], "and none of a text"),
    ],
)
def test_texts_that_cannot_be_scored_are_refused(made, tmp_path, lines, said):
    base, experts = made
    path = tmp_path / "d.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    assert said in faults(ask(tmp_path, base, experts, data={"nouns": str(path)}))


def test_another_encoding_is_named(made, tmp_path):
    base, experts = made
    path = tmp_path / "d.csv"
    path.write_bytes("text,label\nthe café,0\n".encode("latin-1"))
    assert "is no UTF-8 text (byte 18 is 0xe9)" in faults(ask(tmp_path, base, experts, data={"nouns": str(path)}))


def test_long_texts_are_cut_and_counted(made, tmp_path):
    base, experts = made
    path = tmp_path / "d.jsonl"
    lines = [{"text": "the red circle " * length, "label": 0} for length in (1, 20)]
    path.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    found = survey(ask(tmp_path, base, experts, data={"nouns": str(path)}), silent)
    assert "Task 'nouns': 1 of 2 texts have more than 12 tokens and are cut." in found.warnings


def test_more_tokens_than_the_base_reads_are_refused(made, tmp_path):
    assert "Texts of 100 tokens are asked for; the base reads 34" in faults(ask(tmp_path, *made, length=100))


def test_tied_and_untied_outputs_are_not_mixed(tmp_path):
    base, _ = t5(tmp_path / "tied")
    _, experts = t5(tmp_path / "untied", tied=False)
    said = faults(ask(tmp_path, base, {"nouns": experts["nouns"]}))
    assert "Expert 'nouns' has an output that is untied, the base's is tied" in said


def test_answers_are_words(tmp_path):
    base, experts = t5(tmp_path)
    data = {"nouns": str(texts(tmp_path / "d.jsonl", NOUNS))}
    assert "T5 ranks answers in words: give the answers as labels" in faults(ask(tmp_path, base, experts, data=data))


def test_more_answers_than_are_ranked_are_refused(tmp_path):
    base, experts = t5(tmp_path)
    words = [f"w{number}" for number in range(ANSWERS + 1)]
    for count in (ANSWERS, ANSWERS + 1):
        data = {"nouns": str(texts(tmp_path / f"{count}.jsonl", words[:count], 2 * count, numbers=False))}
        said = faults(ask(tmp_path, base, experts, data=data))
        assert ("Task 'nouns' has 33 answers; T5 ranks at most 32" in said) == (count > ANSWERS)


def test_gpt2_is_not_scored(tmp_path):
    base, experts = gpt2(tmp_path)
    data = {"one": str(texts(tmp_path / "d.jsonl", NOUNS))}
    assert "GPT-2 is merged and exported; texts are not scored with it" in faults(
        ask(tmp_path, base, experts, data=data)
    )


def test_a_head_by_itself_is_refused(made, tmp_path):
    base, experts = made
    with pytest.raises(ZooError, match="a text expert brings its classifier along"):
        import_zoo(ask(tmp_path, base, experts, heads=[{"path": str(tmp_path / "head.pt")}]), silent)
