"""Steps whose models are stood in for by what tells which of them was asked, so that numbers follow by hand."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from engine.analysis.written import read_array
from engine.pipeline.run.bundle import BundleInputs, SeedInputs, _timing
from engine.pipeline.views import blame, coverage, disentanglement, energy, exact_match
from engine.zoo.texts.pieces import Pieces

TOOLS = SimpleNamespace(progress=lambda fraction, message="": None)


class Widths:
    """A calibrator that adds 1 and predicts a spread; one without ``wide`` predicts none."""

    def __init__(self, wide):
        if wide:
            self.sigma = lambda features, task: torch.full_like(features, wide)

    def correct(self, features, task):
        return features + 1


def test_coverage_is_of_the_features_that_each_calibrator_acts_on(tmp_path, monkeypatch):
    """The residuals are 0.5, 1.5 and 2.5 of merged features and ten times as much of pretrained ones."""
    calibrators = {"narrow": ("merged", 1.0), "none": ("merged", None), "wide": ("pretrained", 10.0)}
    report = SimpleNamespace(
        calibrators={name: SimpleNamespace(on=on) for name, (on, _) in calibrators.items()},
        tasks_of=lambda domain: {"in": ["one", "two", "unseen"], "out": ["far"]}[domain],
    )
    monkeypatch.setattr("engine.report.read_report", lambda folder: report)
    monkeypatch.setattr("engine.calibration.base.load_calibrator", lambda path: Widths(calibrators[path.stem][1]))
    left = np.array([[0.5], [-1.5], [2.5]], np.float32)
    features = {
        f"{state}/{task}/{split}": (factor * left - 1 if split == "evaluate" else left + 100) * (task != "far")
        for state, factor in (("merged", 1), ("pretrained", 10))
        for task in ("one", "two", "far")
        for split in ("evaluate", "adapt")
    }
    features |= {f"expert/{task}/evaluate": np.zeros_like(left) for task in ("one", "far", "unseen")}
    features["expert/two/evaluate"] = left
    save_file(features, tmp_path / "features.safetensors")
    coverage.coverage.function(coverage.OnBundleInputs(tmp_path), None, tmp_path, TOOLS)
    found = json.loads((tmp_path / "coverage.json").read_text())
    assert {name: list(tasks) for name, tasks in found.items()} == {"narrow": ["one", "two"], "wide": ["one", "two"]}
    # Of a normal distribution 50 % lie within 0.674 standard deviations, 80 % within 1.28, 95 % within 1.96, 99 % 2.58.
    for name in found:
        assert list(found[name]["one"]["coverage"].values()) == pytest.approx([100 / 3, 100 / 3, 200 / 3, 200 / 3, 100])
    assert found["narrow"]["one"]["dimensions"]["residual"] == pytest.approx([(8.75 / 3) ** 0.5])
    assert found["wide"]["two"]["dimensions"]["residual"] == pytest.approx([9 * (8.75 / 3) ** 0.5])


class Spelled(Pieces):
    """A vocabulary in which a text's number is the answer that was written."""

    def __init__(self):
        pass

    def text(self, ids):
        return f" {'yes' if ids[0] % 3 else 'no'}"


def test_every_text_has_the_answer_that_was_written_to_it_however_many_there_are(tmp_path, monkeypatch):
    count, longest = 70, []
    rows = 1000 + np.arange(count)[::-1]

    class Writes(torch.nn.Module):
        def __init__(self, name):
            super().__init__()
            self.shift = {"pretrained": 0, "merged": 1, "own": 2}[name]

        def written(self, samples, most):
            longest.append((len(samples), most))
            return samples + self.shift

    data = SimpleNamespace(vocabulary=Spelled, labels=lambda split: np.arange(1070) % 2)
    zoo = SimpleNamespace(
        data={"task": data}, manifest=SimpleNamespace(task_table={"task": SimpleNamespace(classes=("no ", "yes"))})
    )
    texts = SimpleNamespace(rows=rows, pixels=torch.as_tensor(rows)[:, None], available=90, device="cpu")
    monkeypatch.setattr("engine.pipeline.viewing.models.images_of", lambda *_: texts)
    monkeypatch.setattr("engine.pipeline.viewing.models.Models", lambda *_: SimpleNamespace(encoder=Writes))
    asked = SimpleNamespace(task="task", probe=None, images=70, expert="own", sources=SimpleNamespace(open=lambda: zoo))
    exact_match.exact_match.function(None, asked, tmp_path, TOOLS)
    found = json.loads((tmp_path / "exact_match.json").read_text())
    for text, row in zip(found["texts"], rows.tolist(), strict=True):
        said = ["yes" if (row + shift) % 3 else "no" for shift in range(3)]
        assert [text["pretrained"], text["merged"], text["expert"]] == said
        assert (text["index"], text["answer"]) == (row, ("no", "yes")[row % 2])
    for shift, state in enumerate(("pretrained", "merged", "expert")):
        right = sum(((row + shift) % 3 > 0) == row % 2 for row in rows.tolist())
        assert found["percent"][state] == pytest.approx(100 * right / count)
    assert (found["images"], found["available"]) == (count, 90)
    assert longest == 3 * [(32, 10), (32, 10), (6, 10)]


def test_energy_of_the_others_is_the_mean_over_tasks_that_are_not_the_experts_own(tmp_path, monkeypatch):
    """Inputs of task k lie along axis k with 1 + k parts of 8, and along axis 3 with the rest."""
    names = ("e0", "e1", "e2")
    matrices = [
        SimpleNamespace(name="q", tensor="in", shape=(4, 4)),
        SimpleNamespace(name="v", tensor="in", shape=(8, 4)),
    ]
    directions = {
        name: {"q": torch.eye(4)[[k]].double(), "v": torch.eye(4)[[0, 3]].double()} for k, name in enumerate(names)
    }
    counts = iter((8, 8, 5))

    def images_of(zoo, task, probe, most):
        axis = int(task[1])
        rows = np.arange(next(counts))
        batch = torch.eye(4)[[axis, 3]] * torch.tensor([[1.0 + axis], [7.0 - axis]]).sqrt()
        return SimpleNamespace(rows=rows, device="cpu", batches=lambda: [batch[:1], batch[1:]])

    def layer_inputs(encoder, matrices, samples):
        return {"in": SimpleNamespace(moment=samples.T @ samples)}

    monkeypatch.setattr("engine.zoo.encoders.backbone.load_encoder", lambda *_: torch.nn.Identity())
    monkeypatch.setattr("engine.training.low_rank.adapted_matrices", lambda *_: matrices[::-1])
    monkeypatch.setattr("engine.training.osrm.layer_inputs", layer_inputs)
    monkeypatch.setattr("engine.pipeline.viewing.models.images_of", images_of)
    monkeypatch.setattr(energy, "_directions", lambda zoo, params, name, *_: (directions[name], "factors"))
    zoo = SimpleNamespace(modality=SimpleNamespace(layout_of=lambda config: None), weights=lambda name: None)
    params = SimpleNamespace(
        experts={name: f"t{k}" for k, name in enumerate(names)},
        probe=SimpleNamespace(split_seed=4),
        images=8,
        architecture={},
        sources=SimpleNamespace(open=lambda: zoo),
    )
    energy.energy.function(None, params, tmp_path, TOOLS)
    document = json.loads((tmp_path / "energy.json").read_text())
    assert (document["matrices"], document["images"], document["split_seed"]) == (["q", "v"], [5, 8], 4)
    rest = [8 / 8, 6 / 8, 5 / 8]  # along axes 0 and 3
    for k, name in enumerate(names):
        found, others = document["experts"][name], [other for other in range(3) if other != k]
        assert found["own"] == pytest.approx([(1 + k) / 8, rest[k]])
        assert found["others"] == pytest.approx([0, sum(rest[other] for other in others) / 2])
        assert (found["random"], found["rank"], found["task"]) == ([1 / 4, 2 / 4], 2, f"t{k}")


def test_a_stand_in_is_as_long_as_the_second_vector_tensor_by_tensor():
    first = {"w": torch.ones(40, 30), "b": torch.ones(500)}
    second = {"w": torch.linspace(-1, 3, 1200).view(40, 30), "b": torch.linspace(0, 9, 500)}
    assert disentanglement._stand_in("first", first, second) is first
    drawn = disentanglement._stand_in("random", first, second)
    for name, tensor in second.items():
        assert drawn[name].shape == tensor.shape
        assert float(drawn[name].norm()) == pytest.approx(float(tensor.norm()), rel=1e-5)
        assert abs(float((drawn[name] * tensor).sum() / tensor.square().sum())) < 0.15
        assert abs(float(drawn[name].mean() / drawn[name].std())) < 0.15, "around 0"
    assert float((drawn["w"].flatten()[:500] * drawn["b"]).mean() / drawn["w"].std() / drawn["b"].std()) < 0.2


def test_blame_merges_the_experts_that_a_model_is_called_by(tmp_path, monkeypatch):
    """A stand-in for an encoder is the list of what was merged, and what it gets right are their numbers, in order."""
    numbers = {"pretrained": 0, "merged": 1, "a": 2, "b": 3, "c": 4, "~a": 5, "~b": 6, "~c": 7, "b alone": 8}

    def right(made):
        names = made if isinstance(made, list) else [{"b": "b alone"}.get(made, made)]
        return np.array([numbers[name] for name in names])

    pictures = SimpleNamespace(
        device="cpu", right=right, rows=np.arange(9) + 70_000, labels=np.arange(9) + 300, available=12
    )
    monkeypatch.setattr("engine.pipeline.viewing.models.pictures_of", lambda *_: pictures)
    monkeypatch.setattr("engine.pipeline.viewing.models.Models", lambda *_: SimpleNamespace(encoder=str))
    trials = SimpleNamespace(encoder=list, stranger=lambda name: f"~{name}")
    monkeypatch.setattr("engine.pipeline.viewing.trials.Trials", lambda *_: trials)
    experts = (("a", 1.0), ("b", 1.0), ("c", 1.0))
    sources = SimpleNamespace(open=lambda: None)
    params = SimpleNamespace(sources=sources, task="t", expert="b", probe=None, images=9, experts=experts)
    blame.blame.function(None, params, tmp_path, TOOLS)
    found = json.loads((tmp_path / "blame.json").read_text())
    merged = {name: read_array(array).tolist() for name, array in found["right"].items()}
    a, b, c = (numbers[name] for name in "abc")
    assert merged == {
        **{"pretrained": [0], "merged": [1], "expert": [8], "alone": [b]},
        **{"without/a": [b, c], "without/b": [a, c], "without/c": [a, b]},
        **{"replaced/a": [5, b, c], "replaced/b": [a, 6, c], "replaced/c": [a, b, 7]},
        **{"joined/a": [b, a], "joined/c": [b, c], "stranger/a": [b, 5], "stranger/c": [b, 7]},
    }
    assert read_array(found["index"]).tolist() == pictures.rows.tolist()
    assert read_array(found["labels"]).tolist() == pictures.labels.tolist()


def test_seconds_of_encoding_are_those_of_every_encoding_once(tmp_path):
    def encoded(name, seconds):
        (tmp_path / name).mkdir()
        (tmp_path / name / "features.json").write_text(json.dumps({"seconds": seconds}))
        return tmp_path / name

    shared, other, one, two = (encoded(str(number), 10.0**number) for number in range(-1, 3))
    (tmp_path / "merge").mkdir()
    inputs = BundleInputs[Path](
        tmp_path / "merge",
        seeds={
            seed: SeedInputs(tmp_path / "merge", {"pretrained": {"a": shared, "b": other}, "merged": {"a": own}})
            for seed, own in enumerate((one, two))
        },
    )
    found = _timing(inputs, {"seconds": 3.0}, {"surgery": {"seconds": 4.5}})
    assert found == {"merge": 3.0, "features": pytest.approx(111.1), "surgery": 4.5}
