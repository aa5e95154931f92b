"""Texts are padded with the tokenizer's token; a model has to mask that token, whatever its config says of padding."""

import json

import pytest
import torch

from engine.errors import ZooError
from engine.pipeline.export.model import export_model
from engine.pipeline.local import run_recipe
from engine.recipe import parse_recipe
from engine.store import Store
from engine.zoo.encoders.architecture import architecture
from engine.zoo.folder import Zoo
from engine.zoo.importing.convert import import_zoo
from engine.zoo.importing.survey import survey
from engine.zoo.modalities.texts import TextModality
from engine.zoo.texts.config import NULLS, checked, encoder_size, writer_bytes
from engine.zoo.texts.families import FAMILIES
from tests.made_text_models import CLASSIFIERS, NOUNS, T5_SIZES, VOCABULARY, classifiers, t5, texts, tokenizer
from tests.pipeline.test_text_generation import likelihoods
from tests.pipeline.test_text_import import TOLERANCE, ask, ours, silent, theirs

PAD = 3
OTHERWISE = ("<unk>", "<s>", "</s>", "<pad>", "<mask>", *VOCABULARY[5:10], "green", *VOCABULARY[11:])  # no "red"


def spoil(folders, *, pairs=True):
    """Give models a tokenizer that pads with another token than their config says, and has 0 for unknown words."""
    for folder in folders:
        tokenizer(OTHERWISE, pairs=pairs).save_pretrained(folder)


def change(folder, **more):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_the_tokenizers_padding_is_masked_and_written(tmp_path, kind):
    base, experts = classifiers(kind, tmp_path)
    spoil((base, *experts.values()))
    data = {"nouns": str(texts(tmp_path / "n.jsonl", NOUNS))}
    summary = import_zoo(ask(tmp_path, base, experts, data=data), silent)
    zoo = Zoo.open(str(tmp_path / "zoo"))
    assert 0 in zoo.data["nouns"].samples("test")[:, 0], "there are unknown words, which are no padding"
    assert torch.allclose(
        ours(zoo, zoo.weights("nouns"), "nouns"), theirs(experts["nouns"], zoo, "nouns"), atol=TOLERANCE
    )
    assert json.loads((zoo.folder / "config.json").read_text())["pad_token_id"] == PAD
    notes = [note for row in summary["rows"] for note in row["notes"]]
    assert "texts are padded with the tokenizer's token 3; its config says 0" in notes
    recipe = parse_recipe({"zoo": str(zoo.folder), "merge": {"method": "weight_average"}})
    run_recipe(recipe, Store(tmp_path / "store"), out=tmp_path / "run")
    export_model(tmp_path / "run", tmp_path / "out", "hf", Store().digest_file, task="nouns")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["pad_token_id"] == PAD


def test_a_t5_masks_the_tokenizers_padding(tmp_path):
    base, experts = t5(tmp_path)
    spoil((base, *experts.values()), pairs=False)
    data = {"nouns": str(texts(tmp_path / "n.jsonl", NOUNS, numbers=False))}
    import_zoo(ask(tmp_path, base, experts, data=data), silent)
    zoo = Zoo.open(str(tmp_path / "zoo"))
    expected = likelihoods(experts["nouns"], zoo, "nouns")
    assert torch.allclose(ours(zoo, zoo.weights("nouns"), "nouns"), expected, atol=1e-4)
    assert json.loads((zoo.folder / "config.json").read_text())["pad_token_id"] == PAD


def test_answers_end_with_the_tokenizers_token(tmp_path):
    base, experts = t5(tmp_path)
    for folder in (base, *experts.values()):
        change(folder, eos_token_id=1)  # the default of transformers; its tokenizer ends answers with 2
    data = {"nouns": str(texts(tmp_path / "n.jsonl", NOUNS, numbers=False))}
    summary = import_zoo(ask(tmp_path, base, experts, data=data), silent)
    zoo = Zoo.open(str(tmp_path / "zoo"))
    expected = likelihoods(experts["nouns"], zoo, "nouns")
    assert (expected < 0).all()
    assert torch.allclose(ours(zoo, zoo.weights("nouns"), "nouns"), expected, atol=1e-4)
    assert json.loads((zoo.folder / "config.json").read_text())["eos_token_id"] == 2
    notes = [note for row in summary["rows"] for note in row["notes"]]
    assert "answers end with the tokenizer's token 2; its config says 1" in notes
    change(tmp_path / "zoo", eos_token_id=1)  # as one that was imported before
    assert architecture(zoo.folder, zoo.manifest)["eos_token_id"] == 2


def test_a_roberta_counts_positions_from_its_padding_and_is_refused(tmp_path):
    base, experts = classifiers("roberta", tmp_path)
    spoil((base, *experts.values()))
    (fault,) = survey(ask(tmp_path, base, experts), silent).faults
    assert "The config base/config.json gives pad_token_id as 0, and the tokenizer pads with token 3." in fault.text
    assert "so both must be the same" in fault.text
    for folder in (base, *experts.values()):
        change(folder, pad_token_id=PAD)
    assert not survey(ask(tmp_path, base, experts), silent).faults


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_a_zoo_that_was_imported_before_is_mended_or_refused(tmp_path, kind):
    base, experts = classifiers(kind, tmp_path)
    data = {"nouns": str(texts(tmp_path / "n.jsonl", NOUNS))}
    import_zoo(ask(tmp_path, base, experts, data=data), silent)
    change(tmp_path / "zoo", pad_token_id=5)
    zoo = Zoo.open(str(tmp_path / "zoo"))
    if kind == "roberta":
        with pytest.raises(ZooError, match="the tokenizer pads with token 0"):
            architecture(zoo.folder, zoo.manifest)
        return
    assert architecture(zoo.folder, zoo.manifest)["pad_token_id"] == 0
    expected = theirs(experts["nouns"], zoo, "nouns")
    assert torch.allclose(ours(zoo, zoo.weights("nouns"), "nouns"), expected, atol=TOLERANCE)


@pytest.mark.parametrize("kind", [*CLASSIFIERS, "t5"])
def test_a_null_counts_as_not_stated(tmp_path, kind):
    base, experts = t5(tmp_path) if kind == "t5" else classifiers(kind, tmp_path)
    unusual = {"roberta": {"pad_token_id"}, "t5": {"eos_token_id"}}.get(kind, set())  # the made models have others
    change(base, **dict.fromkeys({*FAMILIES[kind].usual, *NULLS, "num_decoder_layers"} - unusual))
    data = {"nouns": str(texts(tmp_path / "n.jsonl", NOUNS, numbers=kind != "t5"))}
    found = survey(ask(tmp_path, base, experts, data=data), silent)
    assert not found.faults
    import_zoo(ask(tmp_path, base, experts, data=data), silent)
    zoo = Zoo.open(str(tmp_path / "zoo"))
    compared = likelihoods if kind == "t5" else theirs
    assert torch.allclose(ours(zoo, zoo.weights("nouns"), "nouns"), compared(experts["nouns"], zoo, "nouns"), atol=1e-4)


def test_the_usual_padding_stands_for_a_null():
    sizes = CLASSIFIERS["bert"][3] | {"type_vocab_size": 2}
    for kind, usual in (("bert", 0), ("roberta", 1)):
        config = checked({**sizes, "model_type": kind, "pad_token_id": None}, "of the test")
        assert config["pad_token_id"] == usual
        assert TextModality().outline({**sizes, "model_type": kind, "pad_token_id": None})
    written = checked({**T5_SIZES, "model_type": "t5", "num_decoder_layers": None, "eos_token_id": None}, "of the test")
    assert writer_bytes(written) == writer_bytes({**written, "num_decoder_layers": 2})
    assert written["eos_token_id"] == 1


@pytest.mark.parametrize("forward", ["relu", "gated-gelu"])
def test_all_matrices_of_a_t5_are_counted(forward):
    sizes = {**T5_SIZES, "model_type": "t5", "num_decoder_layers": 3, "feed_forward_proj": forward}
    config = checked(sizes, "of the test")
    named = TextModality().outline(config).named_parameters()
    there = [tuple(p.shape) for name, p in named if ".block." in name and p.ndim == 2 and "relative" not in name]
    assert sorted(encoder_size(config).matrices) == sorted(there)


@pytest.mark.parametrize("value", ["0", 1.0, True, -1, 24, [0]])
def test_padding_that_no_row_stands_for_is_refused(value):
    config = {**CLASSIFIERS["bert"][3], "type_vocab_size": 2, "model_type": "bert", "pad_token_id": value}
    with pytest.raises(ZooError, match=r"gives pad_token_id as .*; a token's id from 0 to 23 is expected"):
        checked(config, "of the test")
