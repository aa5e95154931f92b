"""A whole module that open_clip 2.0.2 wrote: heads, activation and transforms are read, features are its own."""

import lzma

import torch
from safetensors.torch import load_file

from engine.zoo.encoders.backbone import architecture, load_encoder
from tests.made_imports import ask, done
from tests.pipeline.open_clip_made import FILE, MEAN, STD, VALUES, VISION


def test_a_module_of_an_old_open_clip_computes_what_it_did(tmp_path):
    module = tmp_path / FILE.stem
    module.write_bytes(lzma.decompress(FILE.read_bytes()))
    zoo, summary = done(ask(tmp_path, module, ("e", module), preprocess=""))
    facts = {fact["name"]: fact for fact in summary["facts"]}
    assert {facts[name]["origin"] for name in ("head_width", "quick_gelu", "preprocess")} == {
        "read: the pickled module"
    }
    config = architecture(zoo.folder, zoo.manifest)
    assert {name: config["vision_cfg"][name] for name in VISION} == VISION
    assert zoo.manifest.backbone.quick_gelu is True
    prepared = zoo.preprocess()
    assert (prepared.mean, prepared.std, prepared.interpolation, prepared.resize_mode) == (
        MEAN,
        STD,
        "bicubic",
        "shortest",
    )
    values = load_file(VALUES)
    with torch.no_grad():
        found = load_encoder(config, zoo.weights("e"))(values["pixels"])
    torch.testing.assert_close(found, values["features"], rtol=0, atol=1e-5)
