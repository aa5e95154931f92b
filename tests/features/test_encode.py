"""Encoding: batches that fit into memory, halving when it runs out, official architectures in their true sizes."""

import json

import numpy as np
import open_clip
import pytest
import torch
from torch import nn

from engine.errors import EngineError
from engine.features import Batches, batches, choose_device, device_class, encode
from engine.manifest import Preprocess
from engine.pipeline.local import run_recipe
from engine.pipeline.rates import known_rates
from engine.pipeline.run import encoding
from engine.recipe import parse_recipe
from engine.store import Store
from engine.zoo.encoders.backbone import build_encoder, outline, sample_bytes, to_tensor
from tests.tiny_zoo import CONFIG, make_zoo

CPU = torch.device("cpu")
PREPROCESS = Preprocess(size=16, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
OFFICIAL = {  # visual tensors, parameters, width, blocks, dimensions
    "ViT-B-32": (152, 87_849_216, 768, 12, 512),
    "ViT-B-16": (152, 86_192_640, 768, 12, 512),
    "ViT-L-14": (296, 303_966_208, 1024, 24, 768),
    "ViT-H-14": (392, 632_076_800, 1280, 32, 1024),
}


class Small(nn.Module):
    """An encoder that takes only so many images at a time."""

    def __init__(self, most: int, error: Exception | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 5)
        self.most, self.error, self.seen = most, error, []

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(pixels))
        if len(pixels) > self.most:
            raise self.error or torch.OutOfMemoryError("CUDA out of memory")
        return self.linear(pixels.mean(dim=(2, 3)))


def images(count):
    return np.random.default_rng(0).integers(0, 255, (count, 16, 16, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "error",
    [
        None,
        MemoryError("no"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"),
        RuntimeError("MPS backend out of memory (MPS allocated: 17.9 GB)"),
    ],
)
def test_batches_are_halved_when_memory_runs_out(error):
    said, found = [], Batches()
    model = Small(10, error).eval().requires_grad_(False)
    given = images(70)
    features = encode(model, given, PREPROCESS, CPU, lambda f, m="": said.append(m), found)
    expected = model.linear(to_tensor(given, PREPROCESS).mean(dim=(2, 3)))
    torch.testing.assert_close(features, expected)
    assert model.seen[:4] == [64, 32, 16, 8]
    assert (found.size, found.halved) == (8, True)
    assert "out of memory: batches of 8 now" in said


def test_other_errors_and_a_single_image_too_large_are_not_hidden():
    with pytest.raises(RuntimeError, match="shape"):
        encode(Small(1, RuntimeError("a wrong shape")), images(4), PREPROCESS, CPU, lambda f, m="": None)
    with pytest.raises(EngineError, match="single sample ran out of memory on cpu"):
        encode(Small(0), images(4), PREPROCESS, CPU, lambda f, m="": None)


def test_a_batch_is_as_large_as_memory_allows(monkeypatch):
    encoder = build_encoder(CONFIG)
    each = sample_bytes(encoder, PREPROCESS)
    monkeypatch.setattr(batches, "_free", lambda device: 4 * 20 * each)
    assert Batches().begin(each, CPU) == 16
    assert Batches(known=8).begin(each, CPU) == 8
    assert Batches(known=64).begin(each, CPU) == 16
    monkeypatch.setattr(batches, "_free", lambda device: 1)
    assert Batches().begin(each, CPU) == 1


def test_an_accelerators_batch_grows_to_what_was_measured(monkeypatch):
    cuda, found = torch.device("cuda"), Batches()
    monkeypatch.setattr(batches, "_free", lambda device: 10**9)
    assert found.begin(sample_bytes(build_encoder(CONFIG), PREPROCESS), cuda) == batches.TRIAL
    assert found.measured(16 * 10**6, 16, cuda) == 512  # 0.7 GB in images of 1 MB
    assert found.measured(16 * 10**9, 16, cuda) == 512


@pytest.mark.parametrize(
    ("cuda", "mps", "bf16", "device", "arithmetic"),
    [
        (True, True, True, "cuda", "cuda/bfloat16"),
        (True, False, False, "cuda", "cuda/float16"),
        (False, True, False, "mps", "mps/float32"),
        (False, False, False, "cpu", "cpu/float32"),
    ],
)
def test_the_fastest_device_there_is_is_taken(monkeypatch, cuda, mps, bf16, device, arithmetic):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: bf16)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert choose_device().type == device
    assert device_class(choose_device()) == arithmetic
    assert choose_device("cpu").type == "cpu"


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_architectures_have_the_published_shapes(name):
    tensors, parameters, width, blocks, dim = OFFICIAL[name]
    config = open_clip.get_model_config(name)
    found = {key: tuple(value.shape) for key, value in outline(config).state_dict().items()}
    patch = config["vision_cfg"]["patch_size"]
    assert len(found) == tensors
    assert sum(int(np.prod(shape)) for shape in found.values()) == parameters
    assert found["proj"] == (width, dim)
    assert found["conv1.weight"] == (width, 3, patch, patch)
    assert found["positional_embedding"] == ((224 // patch) ** 2 + 1, width)
    assert found[f"transformer.resblocks.{blocks - 1}.attn.in_proj_weight"] == (3 * width, width)
    assert found["transformer.resblocks.0.mlp.c_fc.weight"] == (4 * width, width)


def test_the_report_says_that_memory_ran_out(tmp_path, monkeypatch):
    zoo, store = make_zoo(tmp_path / "tiny"), Store(tmp_path / "store")
    real = encoding.encoder_for

    def limited(*arguments):
        encoder = real(*arguments)

        def refuse(module, inputs):
            if len(inputs[0]) > 5:
                raise torch.OutOfMemoryError("out of memory")

        encoder.register_forward_pre_hook(refuse)
        return encoder

    monkeypatch.setattr(encoding, "encoder_for", limited)
    report = run_recipe(parse_recipe({"zoo": str(zoo)}), store)
    assert any("Memory of the cpu ran out while encoding, so batches as small as 4" in w for w in report.warnings)
    assert set(known_rates(store).batches.values()) == {4}
    row = store.runs.list(kinds=("run",))[0]
    assert any("batches of 4 images" in line.line for line in store.runs.logs.read(row.id))
    features = [json.loads(path.read_text()) for path in (store.root / "artefacts").rglob("features.json")]
    assert sum(facts["halved"] for facts in features) >= 1  # the first; later ones begin with what was remembered


def test_the_last_block_computes_what_is_read_alone_unless_somebody_watches():
    torch.manual_seed(0)
    encoder = open_clip.model._build_vision_tower(16, CONFIG["vision_cfg"], False).eval().requires_grad_(False)
    for parameter in encoder.parameters():
        parameter.copy_(0.3 * torch.randn_like(parameter))
    given = images(9)
    whole = encoder(to_tensor(given, PREPROCESS))
    found = [encode(encoder, given, PREPROCESS, CPU, lambda f, m="": None, Batches(known=size)) for size in (64, 4)]
    torch.testing.assert_close(found[0], whole, rtol=1e-5, atol=1e-5)
    seen = []
    hook = encoder.transformer.resblocks[-1].register_forward_hook(lambda *given: seen.append(given[-1].shape))
    watched = encode(encoder, given, PREPROCESS, CPU, lambda f, m="": None)
    hook.remove()
    assert seen == [(9, 5, 32)]
    assert torch.equal(watched, whole)
    read = []
    norm = encoder.ln_post.register_forward_hook(lambda *given: read.append(given[-1].shape))
    encode(encoder, given, PREPROCESS, CPU, lambda f, m="": None)
    norm.remove()
    assert read == [(9, 32)]
    for size in (1, 2, 3, 4, 8):
        parts = [encode(encoder, given[:8], PREPROCESS, CPU, lambda f, m="": None, Batches(known=size))]
        torch.testing.assert_close(parts[0], found[0][:8], rtol=1e-6, atol=1e-6)
