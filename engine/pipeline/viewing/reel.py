"""Frames of a film, read from what the steps of its runs left: points, predictions, distances, accuracies, biases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from ...analysis import bias
from ...analysis.accuracy import predictions, scores, top1
from ...analysis.film import Grid, Map, fit_map, pack_shift
from ...analysis.trust import trust
from ...catalog.titles import method_title
from ...manifest import Task
from ...recipe import Probe
from ...zoo.encoders.heads import ZeroShotHead
from ...zoo.folder import Zoo
from ...zoo.images.splits import Selection, sample_per_class, select

Features = Callable[[str], np.ndarray | None]  # task → (n, dim) of the evaluation images; None where there are none


@dataclass(frozen=True)
class Scene:
    """One task of a film: its images, those of them that are drawn, and what they are scored with."""

    task: Task
    chosen: Selection
    labels: np.ndarray  # (n,) of the evaluation images
    drawn: np.ndarray  # positions among them
    head: ZeroShotHead
    expert: np.ndarray | None  # (n, dim)

    @property
    def index(self) -> np.ndarray:
        """Return the rows of the test split that are drawn."""
        return self.chosen.test[self.chosen.evaluate_rows][self.drawn]


def scenes_of(zoo: Zoo, tasks: tuple[str, ...], probe: Probe, points: int, expert: Mapping[str, Path]) -> list[Scene]:
    """Return the tasks of a film; as many images of each class are drawn as there are enough of.

    Args:
        zoo: holds images and heads.
        tasks: in order.
        probe: chooses the images that are looked at.
        points: images of a task that are drawn, at most.
        expert: task → features of its expert.
    """
    heads, _ = zoo.heads(list(tasks))
    found = []
    for task in tasks:
        chosen = select(zoo.data[task], probe)
        labels = zoo.data[task].labels("test")[chosen.test[chosen.evaluate_rows]]
        drawn = sample_per_class(labels, points, np.random.default_rng(probe.split_seed))
        own = encoded({task: expert[task]}, {task: chosen})(task) if task in expert else None
        found.append(Scene(zoo.manifest.task_table[task], chosen, labels, drawn, heads[task], own))
    return found


def encoded(folders: Mapping[str, Path], chosen: Mapping[str, Selection]) -> Features:
    """Return the features of evaluation images in what steps that encode left, by task."""

    def read(task: str) -> np.ndarray | None:
        if task not in folders:
            return None
        return load_file(folders[task] / "features.safetensors")["test"][chosen[task].evaluate_rows]

    return read


def gathered(folder: Path, chosen: Mapping[str, Selection]) -> Features:
    """Return the features of evaluation images in what one frame's step left, by task."""
    arrays = load_file(folder / "features.safetensors")

    def read(task: str) -> np.ndarray | None:
        return arrays[f"test/{task}"][chosen[task].evaluate_rows] if f"test/{task}" in arrays else None

    return read


def corrected(folder: Path, chosen: Mapping[str, Selection]) -> Features:
    """Return the corrected features of evaluation images in what training a calibrator left, by task."""
    tensors = load_file(folder / "corrected.safetensors")
    return lambda task: tensors[task][chosen[task].evaluate_rows] if task in tensors else None


@dataclass
class Reel:
    """States of a film, frame by frame, as they are measured; a state that stands still has one frame."""

    scenes: list[Scene]
    frames: Mapping[str, Mapping[int, Callable[[], Features]]]  # state → frame → its features
    count: int  # frames, refused ones included
    accuracy: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    l1: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    trust: dict[str, list[float | None]] = field(default_factory=dict)

    def length(self, state: str) -> int:
        """Return the number of frames that a state has."""
        return self.count if state not in ("pretrained", "expert") else 1

    def shoot(
        self, method: Map, seed: int, progress: Callable[[float, str], None]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Measure every frame.

        Returns:
            Arrays as the film step writes them, and what they are in: ``map``, ``grid`` and ``shift_step``.
        """
        place, facts = fit_map(self._anchors(), method, seed=seed)
        points, predicted, shift = {}, {}, {}
        done, all_frames = 0, sum(len(frames) for frames in self.frames.values())
        for state, frames in self.frames.items():
            made = [np.full((self.length(state), self.images, *rest), np.nan) for rest in ((2,), (), ())]
            self.accuracy[state] = {scene.task.name: [None] * self.length(state) for scene in self.scenes}
            self.l1[state] = {scene.task.name: [None] * self.length(state) for scene in self.scenes}
            self.trust[state] = [None] * self.length(state)
            for number, features in frames.items():
                title = method_title(state)
                progress(done / all_frames, f"{title[:1].upper()}{title[1:]}, frame {number + 1}")
                done += 1
                self._measure(state, number, features(), place, made)
            points[state], predicted[state], shift[state] = made
        return self._packed(points, predicted, shift, {"method": method, **facts})

    @property
    def images(self) -> int:
        """Return the number of images that are drawn."""
        return sum(len(scene.drawn) for scene in self.scenes)

    def _measure(self, state: str, number: int, features: Features, place: Callable, made: list[np.ndarray]) -> None:
        """Measure one frame of a state; images of tasks that it has no features of stay NaN."""
        points, predicted, shift = (array[number] for array in made)
        shown, start = [], 0
        for scene in self.scenes:
            rows = slice(start, start := start + len(scene.drawn))
            found = features(scene.task.name)
            if found is None:
                continue
            said = predictions(scores(found, scene.head))
            if not scene.task.grades:  # answers that are numbers are near or far, not right or wrong
                self.accuracy[state][scene.task.name][number] = top1(said, scene.labels)
            predicted[rows] = said[scene.drawn]
            shown.append((rows, found[scene.drawn]))
            if scene.expert is not None:
                self.l1[state][scene.task.name][number] = bias.l1(found, scene.expert)
                shift[rows] = bias.sample_shift(found, scene.expert)[scene.drawn]
        if not shown:
            return
        matrix = np.concatenate([part for _, part in shown])
        placed = place(matrix)
        self.trust[state][number] = trust(matrix, placed)["trustworthiness"]
        for rows, part in shown:
            points[rows], placed = placed[: len(part)], placed[len(part) :]

    def _anchors(self) -> np.ndarray:
        """Return features of the images drawn in the states that stand still and in the ends of those that move."""
        parts = []
        for frames in self.frames.values():
            for number in dict.fromkeys((min(frames), max(frames))) if frames else ():
                features = frames[number]()
                found = ((scene, features(scene.task.name)) for scene in self.scenes)
                parts += [values[scene.drawn] for scene, values in found if values is not None]
        return np.concatenate(parts)

    def _packed(
        self,
        points: Mapping[str, np.ndarray],
        predicted: Mapping[str, np.ndarray],
        shift: Mapping[str, np.ndarray],
        facts: dict[str, Any],
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        grid = Grid.around(list(points.values()))
        steps, unit = pack_shift(np.concatenate([part.ravel() for part in shift.values()]))
        classes = max(len(scene.task.classes) for scene in self.scenes)
        small = np.uint8 if classes < np.iinfo(np.uint8).max else np.uint16  # the largest number: not known
        unknown = np.iinfo(small).max
        arrays = {
            "task": np.repeat(np.arange(len(self.scenes)), [len(s.drawn) for s in self.scenes]).astype(np.uint16),
            "index": np.concatenate([scene.index for scene in self.scenes]).astype(np.int32),
            "label": np.concatenate([scene.labels[scene.drawn] for scene in self.scenes]).astype(small),
        }
        for state, values in points.items():
            own, steps = steps[: shift[state].size], steps[shift[state].size :]
            arrays[f"{state}/points"] = grid.pack(values)
            arrays[f"{state}/predictions"] = np.nan_to_num(predicted[state], nan=unknown).astype(small)
            arrays[f"{state}/shift"] = own.reshape(shift[state].shape)
        map_facts = {**facts, "trust": self.trust}
        return arrays, {"map": map_facts, "grid": {"low": list(grid.low), "step": grid.step}, "shift_step": unit}

    def document(self) -> dict[str, Any]:
        """Return what was measured on all images, and the tasks."""
        tasks = [
            {
                "name": scene.task.name,
                "title": scene.task.label,
                "domain": scene.task.role,
                "classes": list(scene.task.classes),
                "drawn": len(scene.drawn),
                "evaluated": len(scene.labels),
                "adapted": len(scene.chosen.adapt_rows),
                "available": scene.chosen.available,
            }
            for scene in self.scenes
        ]
        return {"states": list(self.frames), "tasks": tasks, "accuracy": self.accuracy, "l1": self.l1}
