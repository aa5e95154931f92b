"""Imports that do not belong together are refused or warned about before anything is written."""

import json
import math
import os

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import normalize

from engine.errors import Cancelled, CheckpointError, EngineError, ZooError
from engine.zoo.importing.convert import import_zoo
from engine.zoo.importing.heads import read_brought_heads
from engine.zoo.importing.preprocess import Unreadable, from_document
from engine.zoo.importing.request import parse_request
from engine.zoo.importing.sources import open_source
from engine.zoo.importing.survey import survey
from tests.made_checkpoints import clip, moved, visual_of, write_head, write_hf, write_pickle
from tests.made_imports import QUICK, ask, silent
from tests.tiny_zoo import CONFIG

KNOWN = {"vision_cfg": {"image_size": 224, "layers": 12, "width": 768, "patch_size": 32}}


def test_families_that_train_different_tensors_are_not_mixed_silently(tmp_path, base, tuned):
    write_pickle(tmp_path / "zeroshot.pt", base)
    write_pickle(tmp_path / "DTD" / "finetuned.pt", moved(base, 9))  # with its projection
    write_hf(tmp_path / "clip-vit-base-patch32_stanford-cars", tuned["cars"], projection=False)
    request = ask(
        tmp_path,
        tmp_path / "zeroshot.pt",
        tmp_path / "DTD" / "finetuned.pt",
        tmp_path / "clip-vit-base-patch32_stanford-cars",
    )
    found = survey(request, silent)
    assert not found.faults
    assert any("Two families" in warning for warning in found.warnings)
    alone = survey(request.model_copy(update={"experts": request.experts[:1]}), silent)
    assert not any("Two families" in warning for warning in alone.warnings)


def test_an_expert_of_few_trained_tensors_beside_a_whole_one_is_warned_about(tmp_path, base):
    save_file(base, tmp_path / "base.safetensors")
    save_file(moved(base, 1), tmp_path / "whole.safetensors")
    biases = [name for name in base if not name.endswith(".bias")]
    save_file(moved(base, 2, keep=("visual.conv1.weight", *biases)), tmp_path / "biases.safetensors")
    found = survey(
        ask(tmp_path, tmp_path / "base.safetensors", tmp_path / "whole.safetensors", tmp_path / "biases.safetensors"),
        silent,
    )
    assert any("visual.conv1.weight was fine-tuned in whole and kept" in warning for warning in found.warnings)


def test_an_expert_of_another_base_is_warned_about(tmp_path, base):
    save_file(base, tmp_path / "base.safetensors")
    save_file(visual_of(clip(seed=7)), tmp_path / "other.safetensors")
    found = survey(ask(tmp_path, tmp_path / "base.safetensors", tmp_path / "other.safetensors"), silent)
    assert any("another model" in warning for warning in found.warnings)


def test_everything_wrong_is_said_at_once(tmp_path, base):
    save_file(base, tmp_path / "base.safetensors")
    wide = visual_of(clip(config={**QUICK, "embed_dim": 24}))
    save_file(wide, tmp_path / "wide.safetensors")
    (tmp_path / "broken.pt").write_bytes(b"PK\x03\x04 and no more")
    heads = [{"path": str(write_head(tmp_path / "head_DTD.pt", torch.randn(4, 16), bias=0.5))}]
    request = ask(
        tmp_path,
        tmp_path / "base.safetensors",
        tmp_path / "wide.safetensors",
        tmp_path / "broken.pt",
        tmp_path / "missing.pt",
        heads=heads,
    )
    with pytest.raises(ZooError) as caught:
        import_zoo(request, silent)
    text = str(caught.value)
    for words in ("visual.proj", "broken.pt", "missing.pt", "bias"):
        assert words in text
    assert not (tmp_path / "zoo").exists()


def test_a_value_that_is_not_finite_leaves_nothing_behind(tmp_path, base):
    save_file(base, tmp_path / "base.safetensors")
    broken = moved(base, 3)
    broken["visual.transformer.resblocks.1.mlp.c_proj.weight"][0, 0] = float("nan")
    save_file(broken, tmp_path / "dtd.safetensors")
    with pytest.raises(ZooError, match="NaN"):
        import_zoo(ask(tmp_path, tmp_path / "base.safetensors", tmp_path / "dtd.safetensors"), silent)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.safetensors", "config", "dtd.safetensors"]


def test_a_cancelled_import_leaves_nothing_behind(tmp_path, base, tuned):
    save_file(base, tmp_path / "base.safetensors")
    save_file(tuned["dtd"], tmp_path / "dtd.safetensors")

    def stop(fraction, message=""):
        if fraction > 0.7:
            raise Cancelled("Cancelled.")

    with pytest.raises(Cancelled):
        import_zoo(ask(tmp_path, tmp_path / "base.safetensors", tmp_path / "dtd.safetensors"), stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.safetensors", "config", "dtd.safetensors"]


def test_an_existing_folder_is_left_alone(tmp_path, base, tuned):
    save_file(base, tmp_path / "base.safetensors")
    save_file(tuned["dtd"], tmp_path / "dtd.safetensors")
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "mine.txt").write_text("mine")
    request = ask(tmp_path, tmp_path / "base.safetensors", tmp_path / "dtd.safetensors")
    with pytest.raises(ZooError, match="not empty"):
        import_zoo(request, silent)
    assert (tmp_path / "zoo" / "mine.txt").read_text() == "mine"
    found = survey(request, silent)
    assert any("not empty" in fault.text for fault in found.faults)
    assert found.free > 2**20, "the room there is told all the same"


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        (torch.randn(4, 16), "norms"),
        (torch.full((4, 16), float("nan")), "finite"),
        (torch.zeros(4, 16), "norms"),
        (normalize(torch.randn(4, 16), dim=1) * 1e6, "scale"),
    ],
)
def test_heads_that_are_no_zero_shot_heads_are_refused(tmp_path, rows, word):
    save_file({"weight": rows}, tmp_path / "head.safetensors")
    with pytest.raises(CheckpointError, match=word):
        read_brought_heads(tmp_path / "head.safetensors")


@pytest.mark.parametrize(
    ("change", "word"),
    [({"experts": []}, "experts"), ({"name": "../up"}, "name"), ({"dtype": "int8"}, "dtype"), ({"bsae": "x"}, "bsae")],
)
def test_requests_are_validated(tmp_path, change, word):
    document = {"base": "b", "experts": [{"path": "e"}], "name": "n", "out": "o", **change}
    with pytest.raises(EngineError, match=word):
        parse_request(document)


@pytest.fixture(scope="module")
def true_size(tmp_path_factory):
    """A base and an expert whose shapes are a known architecture's; nothing beside them says more."""
    place = tmp_path_factory.mktemp("true-size")
    model = clip(config={"embed_dim": 512, **KNOWN, "text_cfg": CONFIG["text_cfg"]})
    tensors = {name: tensor.half() for name, tensor in visual_of(model).items()}
    save_file(tensors, place / "base.safetensors")
    save_file(moved(tensors, 1), place / "dtd.safetensors")
    return place


def test_what_no_file_says_is_refused_and_can_be_given(tmp_path, true_size):
    """The sizes of a known architecture say its heads; the activation of weights says nothing."""
    request = ask(tmp_path, true_size / "base.safetensors", true_size / "dtd.safetensors", architecture="")
    found = survey(request, silent)
    assert found.architecture.config["quick_gelu"] is None
    assert [fault for fault in found.faults if "--quick-gelu" in fault.text]
    for gelu, name in ((False, "ViT-B-32"), (True, "ViT-B-32-quickgelu")):
        corrected = survey(request.model_copy(update={"quick_gelu": gelu}), silent)
        assert corrected.architecture.name == name
        assert not corrected.faults


@pytest.mark.parametrize(
    "record",
    [
        {"lr": 1e-5, "epochs": 10, "model": "ViT-B-32"},
        {"model_type": "ViT-B-32", "lr": 1e-5},
        {"model_type": 3, "model_cfg": None},
        {"model_cfg": "ViT-B-32", "vision": {}},
    ],
)
@pytest.mark.parametrize("file", ["zeroshot.safetensors", "model.safetensors"])
def test_a_record_of_a_training_beside_weights_is_no_config(tmp_path, true_size, record, file):
    """It says nothing of the activation, which is asked for as without it."""
    (tmp_path / "run").mkdir()
    os.link(true_size / "base.safetensors", tmp_path / "run" / file)
    (tmp_path / "run" / "config.json").write_text(json.dumps(record))
    request = ask(tmp_path, tmp_path / "run" / file, true_size / "dtd.safetensors", architecture="")
    found = survey(request, silent)
    assert found.architecture.config["quick_gelu"] is None
    assert [fault for fault in found.faults if "--quick-gelu" in fault.text]
    settled = survey(request.model_copy(update={"quick_gelu": False}), silent)
    assert settled.architecture.name == "ViT-B-32"
    assert not settled.faults
    assert not [warning for warning in settled.warnings if "Activation" in warning]


def test_a_merged_model_may_keep_the_config_of_its_adapter(tmp_path, base):
    folder = write_hf(tmp_path / "e", base)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2}))
    found = survey(ask(tmp_path, write_hf(tmp_path / "base", base), ("e", folder)), silent)
    assert not found.faults
    assert found.rows[1].layout == "Hugging Face CLIP"


@pytest.mark.parametrize("vision", [[1], None, "ViT"])
def test_an_experts_strange_config_is_passed_over(tmp_path, base, vision):
    folder = write_hf(tmp_path / "e", base)
    (folder / "config.json").write_text(json.dumps({"vision_config": vision}))
    assert not survey(ask(tmp_path, write_hf(tmp_path / "base", base), ("e", folder)), silent).faults


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"hidden_size": "32"}, "hidden_size"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_attention_heads": 5}, "heads"),
        ({"vision_config": [1]}, "vision_config"),
        ({"layer_norm_eps": "small"}, "layer_norm_eps"),
        ({"hidden_act": "relu"}, "activation"),
        ({"model_type": "siglip"}, "siglip"),
        ({"num_hidden_layers": 3}, "layers"),
    ],
)
def test_configs_that_do_not_fit_are_refused(tmp_path, base, change, word):
    folder = write_hf(tmp_path / "base", base)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    found = survey(ask(tmp_path, folder, ("e", write_hf(tmp_path / "e", base))), silent)
    assert any(word in fault.text for fault in found.faults)


def test_an_index_may_only_name_files_beside_it(tmp_path, base):
    write_hf(tmp_path / "base", base)
    folder = write_hf(tmp_path / "e", base, shards=2)
    index = folder / "model.safetensors.index.json"
    text = index.read_text()
    for bad in ("../base/model.safetensors", "missing.safetensors"):
        index.write_text(text.replace("model-00001-of-00002.safetensors", bad))
        found = survey(ask(tmp_path, tmp_path / "base", ("e", folder)), silent)
        assert len(found.faults) == 1


def test_weights_in_shards_are_read_with_what_lies_beside_their_index(tmp_path, base):
    folder = write_hf(tmp_path / "base", base, shards=2)
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5] * 3}))
    whole, named = open_source(folder), open_source(folder / "model.safetensors.index.json")
    assert (named.config, named.preprocessor, named.loose) == (whole.config, whole.preprocessor, False)
    assert named.config
    assert named.preprocessor
    (folder / "model.safetensors.index.json").rename(folder / "other.safetensors.index.json")
    assert open_source(folder / "other.safetensors.index.json").loose


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"do_rescale": False}, "do_rescale is false"),
        ({"rescale_factor": None}, "rescale_factor is None"),
        ({"rescale_factor": "1/255"}, "rescale_factor is '1/255'"),
        ({"rescale_factor": float("nan")}, "rescale_factor is nan"),
        ({"rescale_factor": 10**400}, "rescale_factor is 1000"),
        ({"resample": [3]}, r"number \[3\]"),
        ({"resample": None}, "number None"),
        ({"crop_size": None}, "sizes?"),
    ],
)
def test_a_preprocessing_that_cannot_be_carried_out_is_said(change, word):
    document = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"shortest_edge": 16}, "crop_size": 16}
    assert from_document(document, 16).size == 16
    with pytest.raises(Unreadable, match=word):
        from_document({**document, **change}, 16)


def test_heads_take_the_scale_and_the_names_that_stand_in_their_file(tmp_path):
    rows = normalize(torch.randn(4, 16), dim=1)
    path = tmp_path / "heads.safetensors"
    save_file({"weight": rows, "logit_scale": torch.tensor(3.9)}, path)
    (head,) = read_brought_heads(path)
    assert (head.name, head.log_scale) == ("", pytest.approx(3.9))
    save_file({"weight": rows * 50, "logit_scale": torch.tensor(3.9)}, path)
    assert read_brought_heads(path)[0].log_scale == pytest.approx(math.log(50))
    modules = {"birds.weight": rows, "birds.bias": torch.zeros(4), "cats.weight": rows.clone()}
    save_file(modules, path)
    assert [(head.name, head.log_scale) for head in read_brought_heads(path)] == [("birds", None), ("cats", None)]
    save_file({**modules, "birds.bias": torch.ones(4)}, path)
    with pytest.raises(CheckpointError, match="bias"):
        read_brought_heads(path)
