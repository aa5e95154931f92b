"""Splits into images that are adapted on and images that are evaluated."""

import numpy as np
import pytest

from engine.manifest import Task
from engine.recipe import Probe
from engine.zoo.images.data import open_task
from engine.zoo.images.splits import select


def task(folder, labels, *, adapt=0, **changes):
    arrays = {"test_x": np.zeros((len(labels), 8, 8, 3), np.uint8), "test_y": np.asarray(labels)}
    if adapt:
        arrays["adapt_x"] = np.zeros((adapt, 8, 8, 3), np.uint8)
    np.savez(folder / "a.npz", **arrays)
    parts = {"name": "a", "domain": "in", "data": "a.npz", "classes": ("x", "y", "z"), **changes}
    return open_task(folder, Task(**parts))


LABELS = np.repeat([0, 1, 2], [41, 20, 9])


def test_held_out_halves_share_no_image_and_no_class_is_split_unevenly(tmp_path):
    chosen = select(task(tmp_path, LABELS), Probe())
    assert not set(chosen.adapt_rows) & set(chosen.evaluate_rows)
    assert len(chosen.adapt_rows) + len(chosen.evaluate_rows) == len(LABELS)
    for label in range(3):
        halves = [np.sum(LABELS[chosen.test[rows]] == label) for rows in (chosen.adapt_rows, chosen.evaluate_rows)]
        assert abs(halves[0] - halves[1]) <= 1


def test_the_seed_changes_the_split_and_nothing_else_does(tmp_path):
    data = task(tmp_path, LABELS)
    assert np.array_equal(select(data, Probe()).adapt_rows, select(data, Probe()).adapt_rows)
    assert not np.array_equal(select(data, Probe()).adapt_rows, select(data, Probe(split_seed=1)).adapt_rows)


def test_adaptation_images_leave_the_test_images_whole(tmp_path):
    chosen = select(task(tmp_path, LABELS, adapt=30), Probe())
    assert chosen.adapt_source == "adapt"
    assert len(chosen.adapt_rows) == 30
    assert len(chosen.evaluate_rows) == len(LABELS)


def test_the_paper_protocol_is_transductive(tmp_path):
    chosen = select(task(tmp_path, LABELS, adapt=30), Probe(protocol="paper"))
    assert np.array_equal(chosen.adapt_rows, chosen.evaluate_rows)
    assert len(chosen.evaluate_rows) == len(LABELS)


@pytest.mark.parametrize("protocol", ["held_out", "paper"])
def test_out_of_domain_tasks_are_never_adapted_on(tmp_path, protocol):
    chosen = select(task(tmp_path, LABELS, domain="out"), Probe(protocol=protocol))
    assert len(chosen.adapt_rows) == 0
    assert len(chosen.evaluate_rows) == len(LABELS)


def test_sampling_takes_equally_many_of_every_class_as_far_as_there_are(tmp_path):
    chosen = select(task(tmp_path, LABELS), Probe(samples_per_task=30))
    counts = np.bincount(LABELS[chosen.test])
    assert counts.sum() == 30
    assert counts[2] == 9
    assert abs(counts[0] - counts[1]) <= 1
    assert chosen.available == len(LABELS)
