"""Small networks that belong to no zoo: what lies between two of them, trained on scikit-learn's digits in seconds."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from ...alignment.activations import activation_matching
from ...alignment.perceptron import Perceptron, perceptron_symmetry
from ...alignment.repair import goals, repair, unit_statistics
from ...alignment.symmetry import Permutations, permuted, random_permutations
from ...alignment.units import undone
from ...alignment.weight_matching import weight_matching
from ...analysis.interpolation import barrier
from ...experiments import Cell, Experiment, ExperimentResult, PointResult, judge
from ...experiments.verdict import deviation
from ...lessons import Networks
from ...types import Progress, Tensors

SEEDS = 5  # pairs of networks
WIDTHS = (16, 64, 256)  # of both hidden layers
WIDTH = 64  # of the networks that everything is measured of
TRAINED = 1200  # images; the others are tested on
EPOCHS, BATCH, RATE = 30, 64, 5e-3
ALPHAS = tuple(step / 10 for step in range(11))
LAYERS = ["layer0", "layer1", "layer2"]
SYMMETRY = perceptron_symmetry(3)
POINTS = (  # name, title, control
    ("ends", "The networks themselves", False),
    ("plain", "Two starts, as they are", False),
    ("matched", "Units matched by weights", False),
    ("activations", "Units matched by activations", False),
    ("repaired", "Matched by weights and repaired (REPAIR)", False),
    ("shared", "One start, other orders of images", False),
    ("plain_16", "16 units a layer, as they are", False),
    ("matched_16", "16 units a layer, matched", False),
    ("plain_256", "256 units a layer, as they are", False),
    ("matched_256", "256 units a layer, matched", False),
    ("shuffled", "A network and itself in another order of units", True),
    ("unshuffled", "The same, matched by weights", True),
    ("random", "Units in a random order", True),
    ("repaired_alone", "Repaired without matching", True),
)
CHECKS: tuple[dict[str, Any], ...] = (
    {
        "name": "apart",
        "text": "Networks from two starts have a higher barrier than runs that part from one start.",
        "left": "plain",
        "relation": "above",
        "right": "shared",
    },
    {
        "name": "lower",
        "text": "Matching units by weights lowers the barrier.",
        "left": "matched",
        "relation": "below",
        "right": "plain",
    },
    {
        "name": "wide",
        "text": "Matched networks of 256 units have a lower barrier than matched ones of 16.",
        "left": "matched_256",
        "relation": "below",
        "right": "matched_16",
    },
    {
        "name": "repair",
        "text": "REPAIR lowers the barrier of matched networks further.",
        "left": "repaired",
        "relation": "below",
        "right": "matched",
    },
    {
        "text": "A random order of units lowers the barrier as far.",
        "left": "matched",
        "relation": "above_or_near",
        "right": "random",
        "control": True,
        "explains": ("lower",),
    },
    {
        "text": "The barrier falls from 16 to 256 units without matching as well.",
        "left": "plain_256",
        "relation": "below",
        "right": "plain_16",
        "control": True,
        "explains": ("wide",),
    },
    {
        "text": "REPAIR without matching lowers the barrier as far as with it.",
        "left": "repaired",
        "relation": "above_or_near",
        "right": "repaired_alone",
        "control": True,
        "explains": ("repair",),
    },
)


@dataclass(frozen=True)
class Digits:
    """Images (n, 64) in 0 … 1 and labels, for training and for tests."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    digest: str

    @classmethod
    def load(cls) -> Digits:
        """Read the images that come with scikit-learn, split at random with seed 0."""
        from sklearn.datasets import load_digits

        raw = load_digits()
        order = torch.randperm(len(raw.data), generator=torch.Generator().manual_seed(0))
        images, labels = torch.tensor(raw.data / 16, dtype=torch.float32)[order], torch.tensor(raw.target)[order]
        digest = sha256(raw.data.tobytes() + raw.target.tobytes()).hexdigest()
        return cls((images[:TRAINED], labels[:TRAINED]), (images[TRAINED:], labels[TRAINED:]), digest)


def networks_experiment() -> Experiment:
    """Return points, measures and clauses of the study on matching, as an experiment."""
    return Experiment.model_validate(
        {
            "name": "re-basin",
            "title": "When two networks connect",
            "paper": "Ainsworth et al., Git Re-Basin: Merging Models modulo Permutation Symmetries, ICLR 2023",
            "part": "§3 and Figure 2; REPAIR: Jordan et al., ICLR 2023",
            "claim": "Networks from different starts lie in one basin once their units are matched.",
            "base": {
                "data": "scikit-learn's digits",
                "widths": [64, WIDTH, WIDTH, 10],
                "epochs": EPOCHS,
                "batch_size": BATCH,
                "learning_rate": RATE,
            },
            "points": [{"name": name, "title": title, "control": control} for name, title, control in POINTS],
            "measures": [
                {"name": "barrier", "title": "Loss barrier", "analysis": "networks", "unit": "nats"},
                {"name": "middle", "title": "Accuracy half way", "analysis": "networks", "unit": "%"},
                {"name": "ends", "title": "Accuracy of the networks", "analysis": "networks", "unit": "%"},
                {"name": "found", "title": "Units put back in place", "analysis": "networks", "unit": "%"},
            ],
            "checks": [{"measure": "barrier", "margin": 0.02, **check} for check in CHECKS],
            "seeds": SEEDS,
            "minutes": 1,
        }
    )


def measure_networks(progress: Progress | None = None) -> Networks:
    """Train pairs of perceptrons on scikit-learn's digits and measure what lies between them.

    Args:
        progress: told how far it is.

    Source: Ainsworth et al., ICLR 2023, arXiv:2209.04836, §2–3; REPAIR: Jordan et al., ICLR 2023, arXiv:2211.08403;
        runs that part: Frankle et al., ICML 2020, arXiv:1912.05671, §2, at step 0.
    """
    began, digits, spec = time.perf_counter(), Digits.load(), networks_experiment()
    seen: dict[str, list[dict[str, float]]] = {name: [] for name, _, _ in POINTS}
    paths: list[dict[str, Path]] = []
    for seed in range(SEEDS):
        kept: dict[str, Path] = {}
        for name, numbers, path in _pair(digits, seed):
            seen[name].append(numbers)
            kept[name] = path
        paths.append(kept)
        if progress:
            progress((seed + 1) / SEEDS, "networks trained and matched")
    points = tuple(
        PointResult(
            name=name,
            title=title,
            state="network",
            control=control,
            seeds=tuple(range(SEEDS)),
            cells={measure: _cell([row[measure] for row in seen[name]]) for measure in seen[name][0]},
        )
        for name, title, control in POINTS
    )
    findings, verdict, reason = judge(spec.checks, {point.name: point.cells for point in points}, {})
    count = len(digits.test[1])
    result = ExperimentResult(
        name=spec.name,
        form=spec.digest(),
        quick=False,
        zoo="scikit-learn's digits",
        zoo_digest=digits.digest,
        protocol="held_out",
        split_seed=0,
        images=(count, count),
        points=points,
        findings=findings,
        verdict=verdict,
        reason=reason,
        seconds=round(time.perf_counter() - began, 1),
        environment={"torch": torch.__version__, "python": platform.python_version()},
    )
    names = {"plain": "plain", "aligned": "matched", "repaired": "repaired"}
    drawn = {kind: _mean_path([kept[name] for kept in paths]) for kind, name in names.items()}
    document = {"alphas": list(ALPHAS), "tasks": {"digits": drawn}}
    return Networks(experiment=spec, result=result, path=document, ends=("one network", "another"))


@dataclass(frozen=True)
class Path:
    """Losses in nats and accuracies in percent at the positions on a path."""

    loss: list[float]
    accuracy: list[float]

    @property
    def numbers(self) -> dict[str, float]:
        """Return the barrier and the accuracy half way."""
        return {"barrier": barrier(ALPHAS, self.loss), "middle": self.accuracy[len(ALPHAS) // 2]}


def train_network(width: int, digits: Digits, start: int, order: int) -> Tensors:
    """Train a perceptron with two hidden layers by Adam and return its weights.

    Args:
        width: of both hidden layers.
        digits: trained on.
        start: seed of the initial weights.
        order: seed of the batches' order.
    """
    with torch.random.fork_rng():
        torch.manual_seed(start)
        network = Perceptron([64, width, width, 10])
    (images, labels), generator = digits.train, torch.Generator().manual_seed(order)
    adam = torch.optim.Adam(network.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(images), generator=generator).split(BATCH):
            adam.zero_grad()
            functional.cross_entropy(network(images[rows]), labels[rows]).backward()
            adam.step()
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def _pair(digits: Digits, seed: int) -> Iterator[tuple[str, dict[str, float], Path]]:
    """Yield points with their numbers, of one pair of networks."""
    one, two = (train_network(WIDTH, digits, 2 * seed + side, 2 * seed + side) for side in (0, 1))
    path = _path(one, two, digits)
    yield "ends", {"ends": (path.accuracy[0] + path.accuracy[-1]) / 2}, path
    yield "plain", path.numbers, path
    matched = permuted(two, SYMMETRY, weight_matching(one, two, SYMMETRY))
    ends = {
        "matched": matched,
        "activations": permuted(two, SYMMETRY, _by_activations(one, two, digits)),
        "shared": train_network(WIDTH, digits, 2 * seed, 1000 + seed),
        "random": permuted(two, SYMMETRY, random_permutations(SYMMETRY, two, seed)),
    }
    for name, end in ends.items():
        path = _path(one, end, digits)
        yield name, path.numbers, path
    for name, end in (("repaired", matched), ("repaired_alone", two)):
        path = _path(one, end, digits, repaired=True)
        yield name, path.numbers, path
    shuffle = random_permutations(SYMMETRY, one, 100 + seed)
    itself = permuted(one, SYMMETRY, shuffle)
    path = _path(one, itself, digits)
    yield "shuffled", path.numbers, path
    order = weight_matching(one, itself, SYMMETRY)
    path = _path(one, permuted(itself, SYMMETRY, order), digits)
    back = undone(order, shuffle).values()
    yield "unshuffled", {**path.numbers, "found": 100 * sum(back) / len(back)}, path
    for width in (width for width in WIDTHS if width != WIDTH):
        one, two = (train_network(width, digits, 2 * seed + side, 2 * seed + side) for side in (0, 1))
        for name, end in (("plain", two), ("matched", permuted(two, SYMMETRY, weight_matching(one, two, SYMMETRY)))):
            path = _path(one, end, digits)
            yield f"{name}_{width}", path.numbers, path


def _by_activations(one: Tensors, two: Tensors, digits: Digits) -> Permutations:
    """Match hidden units by their values on the training images."""
    seen = tuple(_hidden(Perceptron.of(end), digits.train[0]) for end in (one, two))
    return activation_matching([seen], SYMMETRY, by="correlation").permutations


@torch.no_grad()
def _hidden(network: Perceptron, images: Tensor) -> Mapping[str, Tensor]:
    first = network.layer0(images).relu()
    return {"P_0": first, "P_1": network.layer1(first).relu()}


@torch.no_grad()
def _path(one: Tensors, end: Tensors, digits: Digits, *, repaired: bool = False) -> Path:
    """Return losses and accuracies on the test images between two networks."""
    images, labels = digits.test
    layers = [Perceptron.of(weights) for weights in (one, end)]
    statistics = [unit_statistics(network, LAYERS, digits.train[0]) for network in layers] if repaired else []
    loss, accuracy = [], []
    for alpha in ALPHAS:
        network = Perceptron.of({name: torch.lerp(tensor, end[name], alpha) for name, tensor in one.items()})
        if repaired and 0 < alpha < 1:
            repair(network, goals(statistics[0], statistics[1], alpha), digits.train[0])
        logits = functional_call(network, dict(network.state_dict()), (images,))
        loss.append(float(functional.cross_entropy(logits, labels)))
        accuracy.append(100 * float((logits.argmax(dim=1) == labels).double().mean()))
    return Path(loss, accuracy)


def _mean_path(paths: Sequence[Path]) -> dict[str, Any]:
    """Return means over pairs; the barrier is the mean of the pairs' barriers, not that of the mean path."""
    count = len(paths)
    return {
        "loss": [sum(column) / count for column in zip(*(path.loss for path in paths), strict=True)],
        "accuracy": [sum(column) / count for column in zip(*(path.accuracy for path in paths), strict=True)],
        "barrier": sum(path.numbers["barrier"] for path in paths) / count,
    }


def _cell(values: Sequence[float]) -> Cell:
    kept = tuple(round(value, 6) for value in values)
    return Cell(values=kept, mean=sum(kept) / len(kept), sd=deviation(kept))


STUDIES: dict[str, Callable[[Progress | None], Networks]] = {"re-basin": measure_networks}
