"""Forms in which people have text models: shards, pickles, adapters, old names, vocabularies in files of their own."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertForSequenceClassification

from engine.errors import ZooError
from engine.zoo.folder import Zoo
from engine.zoo.importing.convert import import_zoo
from engine.zoo.texts.pieces import Pieces
from tests.made_text_models import NOUNS, VOCABULARY, classifiers, moved, texts
from tests.pipeline.test_text_import import LENGTH, TOLERANCE, ask, ours, silent, theirs


@pytest.fixture
def made(tmp_path):
    base, experts = classifiers("bert", tmp_path)
    return base, experts, {"nouns": str(texts(tmp_path / "n.jsonl", NOUNS))}


def brought(tmp_path, base, experts, data):
    summary = import_zoo(ask(tmp_path, base, experts, data=data), silent)
    return Zoo.open(str(tmp_path / "zoo")), summary


def test_shards_are_joined(tmp_path):
    base, experts = classifiers("bert", tmp_path, shard="8KB")
    assert len(list(experts["nouns"].glob("model-*.safetensors"))) > 1
    data = {"nouns": str(texts(tmp_path / "n.jsonl", NOUNS))}
    zoo, _ = brought(tmp_path, base, experts, data)
    expected = theirs(experts["nouns"], zoo, "nouns")
    assert torch.allclose(ours(zoo, zoo.weights("nouns"), "nouns"), expected, atol=TOLERANCE)


def test_a_pickled_state_and_the_names_of_old_checkpoints(made, tmp_path):
    base, experts, data = made
    tensors = load_file(base / "model.safetensors")
    old = {}
    for name, tensor in tensors.items():
        if name.startswith("bert."):
            bare = name.removeprefix("bert.").replace("LayerNorm.weight", "LayerNorm.gamma")
            old[bare.replace("LayerNorm.bias", "LayerNorm.beta")] = tensor
    (base / "model.safetensors").unlink()
    torch.save({**old, "embeddings.position_ids": torch.arange(34)[None]}, base / "pytorch_model.bin")
    zoo, _ = brought(tmp_path, base, experts, data)
    found = zoo.weights("base")
    for name, tensor in tensors.items():
        if name.startswith("bert."):
            assert torch.equal(found.tensor(name), tensor)


def test_an_adapter_brings_its_classifier(made, tmp_path):
    base, experts, data = made
    torch.manual_seed(3)
    model = BertForSequenceClassification.from_pretrained(base, num_labels=3)
    config = LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"], init_lora_weights=False)
    adapted = get_peft_model(model, config)
    moved(adapted.base_model.model.classifier, 4)
    adapted.save_pretrained(tmp_path / "lora")
    whole = adapted.merge_and_unload().eval()
    whole.save_pretrained(tmp_path / "whole")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "whole" / name).write_text((base / name).read_text())
    zoo, summary = brought(tmp_path, base, {"nouns": tmp_path / "lora", "answers": experts["answers"]}, data)
    row = next(row for row in summary["rows"] if row["name"] == "nouns")
    assert row["layout"] == "LoRA adapter of rank 2"
    assert any("a classifier of 3 classes" in note for note in row["notes"])
    expected = theirs(tmp_path / "whole", zoo, "nouns")
    assert torch.allclose(ours(zoo, zoo.weights("nouns"), "nouns"), expected, atol=TOLERANCE)


def test_a_vocabulary_of_word_pieces_in_a_file_of_its_own(made, tmp_path):
    """``vocab.txt`` alone, as in the first published BERTs."""
    base, experts, _ = made
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cir", "##cle", "the", "red", "star", "##s", "is", "here"]
    for folder in (base, experts["nouns"]):
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).unlink()
        (folder / "vocab.txt").write_text("\n".join(words))
        (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    brought(tmp_path, base, {"nouns": experts["nouns"]}, {})
    zoo = Zoo.open(str(tmp_path / "zoo"))
    assert zoo.preprocess().special == (0, 2, 3, 4, 1)
    pieces = Pieces.read(zoo.folder / "tokenizer.json", zoo.preprocess().special)
    found = pieces.encode([("The Circle is HERE", ""), ("stars", "the red unseen")], LENGTH)
    tokenizer = AutoTokenizer.from_pretrained(base)
    for row, pair in enumerate([("The Circle is HERE", None), ("stars", "the red unseen")]):
        given = tokenizer(*pair, padding="max_length", max_length=LENGTH)
        assert found.ids[row, 0].tolist() == given["input_ids"]
        assert found.ids[row, 1].tolist() == given["token_type_ids"]
    assert pieces.spelled(found.ids[0, 0][pieces.places(found.ids[0, 0])]) == ["the", "cir", "##cle", "is", "here"]


def test_too_long_pairs_are_cut_as_transformers_cuts_them(made, tmp_path):
    base, experts, data = made
    zoo, _ = brought(tmp_path, base, experts, data)
    pieces = Pieces.read(zoo.folder / "tokenizer.json", zoo.preprocess().special)
    pair = ("the red circle is here " * 3, "a blue star " * 2)
    found = pieces.encode([pair], LENGTH)
    given = AutoTokenizer.from_pretrained(base)(*pair, truncation=True, max_length=LENGTH)
    assert found.ids[0, 0].tolist() == given["input_ids"]
    assert found.cut.tolist() == [15 + 6 + 3 - LENGTH]


def test_labels_that_a_data_set_keeps_secret_are_left_out(made, tmp_path):
    base, experts, _ = made
    folder = tmp_path / "cola"
    folder.mkdir()
    for split, labels in (("validation", [0, 1, 2]), ("test", [-1, -1])):
        lines = [
            json.dumps({"sentence": f"the {noun}", "label": label}) for noun, label in zip(NOUNS, labels, strict=False)
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    request = ask(tmp_path, base, {"cola": experts["nouns"]}, data={"cola": str(folder)})
    summary = import_zoo(request, silent)
    zoo = Zoo.open(str(tmp_path / "zoo"))
    assert zoo.data["cola"].lengths == {"test": 3}
    assert any("kept secret" in text for text in summary["warnings"])
    assert zoo.manifest.task_table["cola"].measure == "matthews"


def test_words_beyond_the_vocabulary_are_counted(made, tmp_path):
    base, experts, _ = made
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"text": "the unheard star", "label": 2}))
    _, summary = brought(tmp_path, base, experts, {"nouns": str(path)})
    assert "Task 'nouns': 20.0 % of its tokens are not in the vocabulary." in summary["warnings"]
    assert len(VOCABULARY) == 17


def test_tensors_of_something_else_are_refused(made, tmp_path):
    base, experts, data = made
    tensors = load_file(experts["nouns"] / "model.safetensors")
    save_file({**tensors, "strange.weight": torch.zeros(2)}, experts["nouns"] / "model.safetensors", {"format": "pt"})
    with pytest.raises(ZooError, match=r"holds strange\.weight, which belongs to no BERT encoder"):
        brought(tmp_path, base, experts, data)
