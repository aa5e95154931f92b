"""Imports of made checkpoints: the experts, the request, and what came of it."""

import json

import torch

from engine.zoo.folder import Zoo
from engine.zoo.importing.convert import import_zoo
from engine.zoo.importing.request import parse_request
from tests.tiny_zoo import CONFIG

QUICK = {**CONFIG, "quick_gelu": True}


def silent(fraction, message=""):
    pass


def ask(tmp_path, base, *experts, **more):
    """A request; experts are paths or (name, path)."""
    items = [{"name": e[0], "path": str(e[1])} if isinstance(e, tuple) else {"path": str(e)} for e in experts]
    document = {"base": str(base), "experts": items, "name": "brought", "out": str(tmp_path / "zoo")}
    document |= {"preprocess": "openai", **more}
    if str(base).endswith((".safetensors", ".bin", "b.pt")) and "architecture" not in more:
        (tmp_path / "config").mkdir(exist_ok=True)
        document["architecture"] = str(tmp_path / "config" / "tiny.json")
        (tmp_path / "config" / "tiny.json").write_text(json.dumps(CONFIG))
    return parse_request(document)


def done(request):
    summary = import_zoo(request, silent)
    return Zoo.open(request.out), summary


def agrees(weights, expected, tolerance=0.0):
    assert set(weights.names) == set(expected)
    for name, tensor in expected.items():
        assert torch.allclose(weights.tensor(name), tensor, rtol=0, atol=tolerance), name
