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
from engine.pipeline.views import attention, blame, coverage, disentanglement, energy, exact_match, occlusion
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


def test_correlations_of_rows_leave_out_those_that_do_not_vary():
    rising, mixed, still = [1.0, 2, 3, 4], [1.0, 4, 2, 3], [5.0, 5, 5, 5]
    pearson = np.corrcoef(rising, mixed)[0, 1]
    left, right = np.array([rising, rising, still, rising]), np.array([mixed, rising[::-1], rising, still])
    assert attention.correlation(left, 7 + 2 * right) == pytest.approx((pearson - 1) / 2)
    assert attention.correlation(left[2:], right[2:]) is None
    longer = [np.array([*rising, 100.0]), np.array([1.0, 2]), np.array(still)]
    found = attention._alike(longer, [np.array(mixed), np.array([2.0, 1, 5]), np.array(rising)])
    assert found == pytest.approx(pearson), "over the places that both have, three or more"
    assert attention._alike(longer[1:2], longer[1:2]) is None
    pairs = [np.array(rising), np.array(rising), np.array([1.0, 2]), np.array(rising)]
    others = [np.array(mixed), np.array(rising), np.array([2.0, 1]), np.array(still)]
    assert occlusion._alike(pairs, others) == pytest.approx((pearson + 1) / 2)
    assert occlusion._alike(pairs[2:], others[2:]) is None


def test_hidden_words_move_a_feature_by_the_cosine_distance_of_their_own_text():
    """A text's feature is the text itself; of 300 texts the last has three words, the others one."""
    angles = torch.linspace(0.1, 1, 300)

    def at(turned):
        turns = torch.as_tensor(turned)
        return torch.stack([turns.cos(), turns.sin()], dim=1)

    rows, hidden = 3 * at(angles), [5 * at([angle + 0.01 * number]) for number, angle in enumerate(angles)]
    hidden[-1] = torch.cat([hidden[-1], at([angles[-1], angles[-1] + np.pi])])
    encoder, told = torch.nn.Linear(2, 2, bias=False), []
    torch.nn.init.eye_(encoder.weight)
    found = occlusion._moved(encoder, rows, [(range(len(part)), part) for part in hidden], told.append)
    assert [len(values) for values in found] == [1] * 299 + [3]
    for number, values in enumerate(found):
        assert values[0] == pytest.approx(1 - np.cos(0.01 * number), abs=1e-5)
    assert found[-1][1:] == pytest.approx([0, 2], abs=1e-5)
    assert all(values.min() >= 0 for values in found)
    assert told == [0, 0.5]


def test_attention_is_compared_with_the_same_and_with_another_image(tmp_path, monkeypatch):
    count = 2
    drawn = np.random.default_rng(0).random((2, count, 4)).astype(np.float32)
    shares = dict(zip(("own", "merged"), torch.from_numpy(drawn / drawn.sum(-1, keepdims=True)), strict=True))
    tokens = {
        "own": torch.tensor([3.0, 4.0]).expand(count, 4, 2),
        "merged": torch.tensor([3.0, 2.0]).expand(count, 4, 2),
    }
    images = SimpleNamespace(rows=np.arange(count) + 40_000, device="cpu", available=9, batches=lambda report: None)
    monkeypatch.setattr("engine.pipeline.viewing.models.images_of", lambda *_: images)
    monkeypatch.setattr("engine.pipeline.viewing.models.Models", lambda *_: SimpleNamespace(encoder=str))
    look = lambda name, *_: SimpleNamespace(rollout=shares[name], tokens=tokens[name])  # noqa: E731
    monkeypatch.setattr("engine.calibration.rollout.look", look)
    data = SimpleNamespace(labels=lambda split: np.arange(41_000) // 100)
    zoo = SimpleNamespace(data={"task": data}, modality=SimpleNamespace(layout_of=lambda config: None, parts=False))
    params = SimpleNamespace(
        task="task", expert="own", images=9, architecture={}, probe=SimpleNamespace(split_seed=3),
        sources=SimpleNamespace(open=lambda: zoo),
    )  # fmt: skip
    tools = SimpleNamespace(part=lambda start, end: None)
    attention.attention.function(None, params, tmp_path, tools)
    found = json.loads((tmp_path / "attention.json").read_text())
    table = np.corrcoef(drawn[1] - drawn[1].mean(1, keepdims=True), drawn[0])[:count, count:]  # merged in rows
    assert found["alike"]["same"] == pytest.approx(table.diagonal().mean(), abs=1e-6)
    assert found["alike"]["another"] == pytest.approx((table[0, 1] + table[1, 0]) / 2, abs=1e-6)
    assert (found["images"], found["available"]) == (count, 9)
    assert read_array(found["index"]).tolist() == images.rows.tolist()
    assert read_array(found["labels"]).tolist() == [400] * count
    for name, state in (("expert", "own"), ("merged", "merged")):
        kept = read_array(found[name]) * found["unit"][name]
        np.testing.assert_allclose(kept, shares[state].numpy(), atol=found["unit"][name] / 2 + 1e-7)
    np.testing.assert_allclose(read_array(found["drift"]) * found["unit"]["drift"], 2 / 5, rtol=1e-6)
