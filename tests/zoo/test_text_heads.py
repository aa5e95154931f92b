"""Heads from the text encoder: the bundled zoo's own, and official architectures with CLIP's vocabulary."""

import json

import numpy as np
import pytest
import torch
import yaml
from open_clip.model import CLIP
from safetensors.torch import load_file, save_file
from torch.nn import functional

from engine.errors import ZooError
from engine.manifest import ASSETS, read_manifest
from engine.zoo.check import check_zoo
from engine.zoo.encoders.heads import read_heads
from engine.zoo.encoders.text import build_heads, text_problem
from tests.tiny_zoo import CLASSES, CONFIG, make_zoo

QUIET = lambda fraction, message="": None  # noqa: E731


def zoo_with_text(folder):
    """The tiny zoo with a whole CLIP as its base, a vocabulary, and no heads."""
    make_zoo(folder)
    torch.manual_seed(1)
    base = {**CLIP(**CONFIG).state_dict(), **load_file(folder / "base.safetensors")}
    save_file({name: tensor.contiguous() for name, tensor in base.items()}, folder / "base.safetensors")
    special = {"pad": 0, "start": 5, "end": 6}
    words = {word: number for number, word in enumerate(("a", *CLASSES), start=1)}
    (folder / "vocabulary.json").write_text(json.dumps({"context_length": 4, "special": special, "words": words}))
    document = yaml.safe_load((folder / "zoo.yaml").read_text())
    del document["heads"]
    for task in document["tasks"]:
        task["templates"] = ["a {}", "{}"]
    (folder / "zoo.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    (folder / "heads.safetensors").unlink()
    return folder


def test_the_bundled_zoos_heads_come_out_again():
    folder = ASSETS / "zoos" / "mini8"
    manifest = read_manifest(folder)
    built = build_heads(folder, manifest, ["digits", "textures"], QUIET)
    shipped, _ = read_heads(folder, manifest, ["digits", "textures"])
    for task, head in built.items():
        np.testing.assert_allclose(head.numpy(), shipped[task].weight.numpy(), atol=1e-5)


def test_a_head_is_the_mean_of_its_prompts(tmp_path):
    folder = zoo_with_text(tmp_path / "zoo")
    manifest = read_manifest(folder)
    assert text_problem(folder, manifest) == ""
    head = build_heads(folder, manifest, ["alpha"], QUIET)["alpha"]
    model = CLIP(**CONFIG).eval()
    model.load_state_dict(load_file(folder / "base.safetensors"))
    tokens = {
        "a {}": torch.tensor([[5, 1, number, 6] for number in (2, 3, 4)]),
        "{}": torch.tensor([[5, number, 6, 0] for number in (2, 3, 4)]),
    }
    with torch.no_grad():
        parts = [functional.normalize(model.encode_text(tokens[template]), dim=1) for template in ("a {}", "{}")]
    np.testing.assert_allclose(head.numpy(), functional.normalize(sum(parts) / 2, dim=1).numpy(), atol=1e-5)


def test_an_official_architecture_reads_clips_own_vocabulary(tmp_path):
    from open_clip import tokenize

    folder = zoo_with_text(tmp_path / "zoo")
    (folder / "vocabulary.json").unlink()
    text = {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
    config = {**CONFIG, "text_cfg": text}
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(2)
    model = CLIP(**config).eval()
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / "base.safetensors")
    manifest = read_manifest(folder)
    head = build_heads(folder, manifest, ["alpha"], QUIET)["alpha"]
    with torch.no_grad():
        parts = [
            functional.normalize(model.encode_text(tokenize([template.format(name) for name in CLASSES])), dim=1)
            for template in ("a {}", "{}")
        ]
    np.testing.assert_allclose(head.numpy(), functional.normalize(sum(parts) / 2, dim=1).numpy(), atol=1e-5)


def test_what_is_missing_is_said(tmp_path):
    folder = zoo_with_text(tmp_path / "zoo")
    manifest = read_manifest(folder)
    words = json.loads((folder / "vocabulary.json").read_text())
    del words["words"]["star"]
    (folder / "vocabulary.json").write_text(json.dumps(words))
    with pytest.raises(ZooError, match="head of 'alpha' cannot be built: the text encoder knows no word 'star'"):
        build_heads(folder, manifest, ["alpha"], QUIET)
    with pytest.raises(ZooError, match=r"'alpha' cannot be built: .* 'star' \(of 'a star'\)\. Give other templates"):
        check_zoo(str(folder), QUIET)
    (folder / "vocabulary.json").unlink()
    assert "reads 8 tokens" in text_problem(folder, manifest)
    base = load_file(folder / "base.safetensors")
    visual = {name: tensor for name, tensor in base.items() if name.startswith("visual.")}
    save_file(visual, folder / "base.safetensors")
    with pytest.raises(ZooError, match=r"base\.safetensors holds no text encoder\. Give a base with its text encoder"):
        build_heads(folder, manifest, ["alpha"], QUIET)
