"""One zoo in a worker's memory: weights, samples, features that stand still, what methods cache, one merged vector.

A worker keeps the zoo that it previewed last, as long as it takes no more than a share of the memory that is free, and
gives it back when no preview was asked for a while. Nothing of it reaches the store.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from torch import Tensor, nn

from ...merging.scaled import Scaled
from ...recipe import Probe
from ...types import Tensors, Weights
from ...weights import Memory
from ...zoo.encoders.backbone import build_encoder
from ...zoo.encoders.heads import ZeroShotHead
from ...zoo.folder import Zoo
from ...zoo.images.splits import Selection, select
from ..run.context import MergeContext
from ..sources import Sources

if TYPE_CHECKING:
    from ..tools import StepTools

IDLE = 300.0  # seconds after the last preview until the memory is given back
SHARE = 0.2  # of the memory that is free, for weights; zoos that take more are read anew
MOST = 2**31  # bytes of weights and of what methods cache, at most
FEATURES = 64  # matrices of features that are kept: of models that stand still, a task each


class Resident:
    """A zoo in memory."""

    def __init__(self, zoo: Zoo, contents: Mapping[str, str]) -> None:
        """Read nothing yet; what a zoo has is read when it is asked for.

        Args:
            zoo: as it was opened.
            contents: what is asked for, by name; see :func:`.models.contents_of`.
        """
        self.zoo = zoo
        self._contents = dict(contents)
        self._weights: dict[str, Weights] = {}
        self._samples: dict[tuple[str, str, bytes], np.ndarray] = {}
        self._chosen: dict[tuple[str, str], tuple[Selection, np.ndarray]] = {}
        self._heads: dict[str, ZeroShotHead] = {}
        self._encoder: tuple[str, nn.Module] | None = None  # with its configuration
        self._features: OrderedDict[str, np.ndarray] = OrderedDict()
        self.news = 0  # times that something was read or computed for what comes after
        self._cached: OrderedDict[str, Tensors] = OrderedDict()
        self._room = min(MOST, int(SHARE * psutil.virtual_memory().available))  # bytes that are left for weights
        self._spare = self._room  # bytes that are left for what methods cache
        self._vector: tuple[str, dict[str, Tensor]] | None = None  # of the last merge that is proportional to λ

    def holds(self, contents: Mapping[str, str]) -> bool:
        """Return whether this is what was read; more of the zoo may join it."""
        return all(self._contents.get(name, content) == content for name, content in contents.items())

    def join(self, contents: Mapping[str, str]) -> None:
        """Take note of more of the zoo."""
        self._contents.update(contents)

    def weights(self, name: str) -> Weights:
        """Return the encoder's tensors of ``base`` or an expert, in memory where there is room."""
        if name in self._weights:
            return self._weights[name]
        stored = self.zoo.weights(name)
        size = _size(stored)
        if size > self._room:
            return stored
        self._room -= size
        self.news += 1
        self._weights[name] = Memory({tensor: stored.tensor(tensor) for tensor in stored.names})
        return self._weights[name]

    def scaled(self, name: str, scaling: float, compute: Callable[[], Tensors]) -> Weights | None:
        """Return the base plus λ times a merged vector; None where there is no room to keep the vector.

        One vector is kept. Experts give up their memory for it, last ones first: another λ needs none of them.

        Args:
            name: of all that the vector depends on.
            scaling: λ.
            compute: called where another vector is kept, or none.
        """
        base = self.weights("base")
        if not isinstance(base, Memory):
            return None
        if self._vector is None or self._vector[0] != name:
            self._room += 0 if self._vector is None else _bytes(self._vector[1])
            self._vector = None  # before the next one is made
            experts = [expert for expert in self._weights if expert != "base"]
            if _size(base) > self._room + sum(_size(self._weights[expert]) for expert in experts):
                return None
            vector = {layer: tensor.clone() for layer, tensor in compute().items()}
            experts = [expert for expert in self._weights if expert != "base"]
            while (size := _bytes(vector)) > self._room and experts:
                self._room += _size(self._weights.pop(experts.pop()))
            if size > self._room:
                return Scaled(base, vector, scaling)
            self._room -= size
            self._vector = (name, vector)
        return Scaled(base, self._vector[1], scaling)

    def encoder(self, config: Mapping[str, Any]) -> nn.Module:
        """Return the encoder of a configuration, which whoever asks fills with weights; the last one is kept."""
        name = json.dumps(config, sort_keys=True)
        if self._encoder is None or self._encoder[0] != name:
            self._encoder = (name, build_encoder(config))
            self.news += 1
        return self._encoder[1]

    def samples(self, task: str, rows: np.ndarray, split: str = "test") -> np.ndarray:
        """Return samples of a task's split by their rows."""
        name = (task, split, rows.tobytes())
        if name not in self._samples:
            self.news += 1
            self._samples[name] = np.asarray(self.zoo.data[task].samples(split, rows)[:])
            while len(self._samples) > FEATURES:
                del self._samples[next(iter(self._samples))]
        return self._samples[name]

    def chosen(self, task: str, probe: Probe) -> tuple[Selection, np.ndarray]:
        """Return the images of a task that a probe chooses, and the labels of those that are scored."""
        name = (task, probe.model_dump_json())
        if name not in self._chosen:
            self.news += 1
            data = self.zoo.data[task]
            chosen = select(data, probe)
            self._chosen[name] = (chosen, data.labels("test")[chosen.test[chosen.evaluate_rows]])
            while len(self._chosen) > FEATURES:
                del self._chosen[next(iter(self._chosen))]
        return self._chosen[name]

    def heads(self, tasks: list[str]) -> dict[str, ZeroShotHead]:
        """Return the heads of some tasks."""
        if set(tasks) - set(self._heads):
            self.news += 1
            self._heads |= self.zoo.heads(tasks)[0]
        return {task: self._heads[task] for task in tasks}

    def features(self, key: str) -> np.ndarray | None:
        """Return a matrix of features by its key, None where it is not at hand."""
        if key not in self._features:
            return None
        self._features.move_to_end(key)
        return self._features[key]

    def keep(self, key: str, features: np.ndarray) -> None:
        """Keep a matrix of features; the oldest ones go first."""
        self._features[key] = features
        while len(self._features) > FEATURES:
            self._features.popitem(last=False)

    def cached(self, key: str, compute: Callable[[], Tensors]) -> Tensors:
        """Return tensors that depend on one expert only, computed where they are not at hand; oldest ones go first."""
        if key in self._cached:
            self._cached.move_to_end(key)
            return _copies(self._cached[key])
        self.news += 1
        found = {name: tensor.detach().cpu().contiguous() for name, tensor in compute().items()}
        size = _bytes(found)
        while self._cached and size > self._spare:
            self._spare += _bytes(self._cached.popitem(last=False)[1])
        if size <= self._spare:
            self._spare -= size
            self._cached[key] = found
        return _copies(found)


class InMemory(MergeContext):
    """The context of a merge that is previewed: what methods cache stays in memory, and progress is no step's own."""

    resident: Resident

    def progress(self, fraction: float, message: str = "") -> None:
        """Stop where the preview is no longer wanted."""
        self._tools.check()

    def cached(self, expert: str, quantity: str, params: Mapping[str, Any], compute: Callable[[], Tensors]) -> Tensors:
        """Return tensors that depend on one expert (and the base) only, kept in memory."""
        parts = self._parts(expert, quantity, params)
        return self.resident.cached(json.dumps(parts, sort_keys=True), compute)


class Keeper:
    """Keeps one zoo, and gives it back when nobody asked for it for a while."""

    def __init__(self, idle: float = IDLE) -> None:
        """Keep nothing yet.

        Args:
            idle: seconds without a preview after which the zoo is given back.
        """
        self.idle = idle
        self._lock = threading.Lock()
        self._kept: tuple[str, Resident] | None = None
        self._timer: threading.Timer | None = None

    def take(self, sources: Sources, contents: Mapping[str, str]) -> Resident:
        """Return a zoo in memory, in the place of another one and of the same one as it was before it changed.

        Args:
            sources: where it lies; its manifest is compared as it is now.
            contents: what is asked for, by name; see :func:`.models.contents_of`.

        Raises:
            ZooError: the folder is no zoo.
        """
        name, zoo = sources.model_dump_json(), sources.open()
        asked = {**contents, "manifest": zoo.manifest.model_dump_json()}
        with self._lock:
            self._wait()
            if self._kept is not None and self._kept[0] == name and self._kept[1].holds(asked):
                self._kept[1].join(asked)
                return self._kept[1]
            self._kept = None  # before the next one is read
            self._kept = (name, Resident(zoo, asked))
            return self._kept[1]

    @property
    def empty(self) -> bool:
        """Return whether nothing is kept."""
        return self._kept is None

    def give_back(self) -> None:
        """Forget the zoo."""
        with self._lock:
            self._kept = None

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(self.idle, self.give_back)
        self._timer.daemon = True
        self._timer.start()


KEEPER = Keeper()


def context_of(
    resident: Resident,
    tasks: tuple[str, ...],
    digests: Mapping[str, str],
    probe: Any,
    seed: int,
    tools: StepTools,
    factors: Mapping[str, float],
) -> InMemory:
    """Return the context of a merge on a zoo in memory; see :class:`MergeContext` for the arguments."""
    context = InMemory(resident.zoo, tasks, digests, probe, seed, tools, factors)
    context.resident = resident
    return context


def _copies(tensors: Tensors) -> dict[str, Tensor]:
    """Return copies, since whoever asked may overwrite them."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _size(weights: Weights) -> int:
    return sum(weights.dtype(name).itemsize * int(np.prod(weights.shape(name))) for name in weights.names)


def _bytes(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
