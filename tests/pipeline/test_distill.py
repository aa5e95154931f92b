"""Distillation: the loss by hand, a teacher of another architecture, and teachers that do not fit."""

import json

import pytest
import torch
import yaml
from open_clip.model import CLIP
from safetensors.torch import load_file, save_file
from torch.nn import functional

from engine.errors import EngineError
from engine.manifest import read_manifest
from engine.pipeline.local import finetune_experts
from engine.store import Store
from engine.zoo.encoders.training import Schedule, Teaching, Trainer
from tests.pipeline.test_finetune import base, images, zoo  # noqa: F401
from tests.tiny_zoo import CONFIG

DEEPER = CONFIG | {"embed_dim": 12, "vision_cfg": {**CONFIG["vision_cfg"], "layers": 3, "width": 16, "head_width": 8}}


@pytest.fixture
def teacher(zoo):  # noqa: F811
    """A deeper, narrower model that was trained on the same task, with its classes in another order."""
    folder = zoo.parent / "teacher"
    folder.mkdir()
    torch.manual_seed(2)
    save_file({k: v.clone() for k, v in CLIP(**DEEPER).state_dict().items()}, folder / "base.safetensors")
    (folder / "config.json").write_text(json.dumps(DEEPER))
    document = yaml.safe_load((zoo / "zoo.yaml").read_text())
    document |= {"name": "teacher", "experts": []}
    document["backbone"] |= {"weights": "base.safetensors", "architecture": "config.json"}
    document["tasks"] = [task for task in document["tasks"] if task["name"] == "warm"]
    (folder / "data").mkdir()
    for path in (zoo / "data").glob("warm.*"):
        (folder / "data" / path.name).write_bytes(path.read_bytes())
    head = functional.normalize(torch.randn(3, 12), dim=1)
    save_file({"warm": head, "logit_scale": torch.tensor(3.0)}, folder / "heads.safetensors")
    document["heads"] = "heads.safetensors"
    (folder / "zoo.yaml").write_text(yaml.safe_dump(document))
    config = {"steps": 60, "batch_size": 16, "learning_rate": 3e-3}
    finetune_experts({"zoo": str(folder), "tasks": ["warm"], "config": config}, Store(folder / "store"))
    document = yaml.safe_load((folder / "zoo.yaml").read_text())
    task = document["tasks"][0]
    task["classes"] = [task["classes"][place] for place in (2, 0, 1)]
    (folder / "zoo.yaml").write_text(yaml.safe_dump(document))
    save_file({**load_file(folder / "heads.safetensors"), "warm": head[[2, 0, 1]]}, folder / "heads.safetensors")
    return folder


def test_the_loss_is_hintons():
    logits, soft, labels = torch.randn(5, 3), torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    hard = functional.cross_entropy(logits, labels)
    p, q = (torch.softmax(part / 3.0, dim=1) for part in (soft, logits))
    expected = 0.3 * hard + 0.7 * 9.0 * (p * (p.log() - q.log())).sum(dim=1).mean()
    torch.testing.assert_close(Teaching(3.0, 0.7).loss(logits, soft, hard), expected)
    assert float(Teaching(3.0, 1.0).loss(soft, soft, hard)) == pytest.approx(0, abs=1e-6)


def test_a_batch_in_parts_has_the_same_gradient():
    gradients = []
    for parts in (1, 3):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 4)).double()
        heads, teaching = [torch.eye(3, 4).double()], Teaching(2.0, 0.5)
        trainer = Trainer(model, heads, 5.0, Schedule(1, 0.1, 1), teaching=teaching)
        trainer.parts = parts
        generator = torch.Generator().manual_seed(1)
        batch = torch.randn(9, 3, 2, 2, generator=generator, dtype=torch.float64)
        soft = torch.randn(9, 3, generator=generator, dtype=torch.float64)
        trainer.gradient(batch, [torch.arange(9) % 3], soft)
        gradients.append(model[1].weight.grad)
    torch.testing.assert_close(*gradients)


def test_a_student_learns_from_another_architecture(command, zoo, teacher):  # noqa: F811
    options = ("--task", "warm", "--steps", 60, "--batch-size", 16, "--learning-rate", 3e-3, "-q")
    only = ("--weight", 1.0, "--temperature", 1.0)
    code, out, err = command("zoo", "distill", zoo, "--teacher", f"{teacher}:warm", *only, *options)
    assert (code, err) == (0, "")
    assert "the teacher is right on" in out
    expert = read_manifest(zoo).expert_table["warm-distilled"]
    assert (expert.method, expert.forward) == ("distilled", "standard")
    record = json.loads((zoo / "build.json").read_text())["finetuned"]["warm-distilled"]
    assert record["teacher"]["order"] == [1, 2, 0]
    assert record["images"]["teacher"] > 80, "classes are matched by name"
    assert record["curve"][-1][1] < 0.5 * record["curve"][1][1], "the divergence falls, without any label"
    assert record["validation_accuracy"]["expert"] >= record["validation_accuracy"]["base"]
    code, _, err = command("zoo", "distill", zoo, "--teacher", f"{teacher}:warm", *options)
    assert code == 1
    assert "has the expert 'warm-distilled' already" in err


def other_classes(teacher):
    document = yaml.safe_load((teacher / "zoo.yaml").read_text())
    document["tasks"][0]["classes"].append("purple")
    (teacher / "zoo.yaml").write_text(yaml.safe_dump(document))


def no_heads(teacher):
    document = yaml.safe_load((teacher / "zoo.yaml").read_text())
    del document["heads"]
    (teacher / "zoo.yaml").write_text(yaml.safe_dump(document))


def linearised(teacher):
    document = yaml.safe_load((teacher / "zoo.yaml").read_text())
    document["experts"][0]["forward"] = "linearised"
    (teacher / "zoo.yaml").write_text(yaml.safe_dump(document))


def nothing(teacher):
    pass


FAULTS = {
    "classes": (other_classes, {}, "The teacher has 4 classes for 'warm', the student's task 'warm' has 3; .* purple"),
    "heads": (no_heads, {}, "brings no heads"),
    "linearised": (linearised, {}, "'warm' is evaluated linearised. Name an expert that was trained another way"),
    "model": (nothing, {"model": "wram"}, "Did you mean 'warm'"),
    "task": (nothing, {"task": "cold"}, "has no task 'cold'"),
    "temperature": (nothing, {"temperature": 0}, "temperature"),
    "zoo": (nothing, {"zoo": "nowhere"}, "no zoo 'nowhere'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_teacher_that_does_not_fit_is_refused_with_the_reason(fault, zoo, teacher, tmp_path):  # noqa: F811
    spoil, change, reason = FAULTS[fault]
    spoil(teacher)
    before = (zoo / "zoo.yaml").read_text()
    request = {"zoo": str(zoo), "tasks": ["warm"], "config": {"steps": 2, "batch_size": 8}}
    request["teacher"] = {"zoo": str(teacher), "model": "warm", **change}
    with pytest.raises(EngineError, match=reason):
        finetune_experts(request, Store(tmp_path / "store"))
    assert (zoo / "zoo.yaml").read_text() == before
