"""Differences of runs and states as a table: same images only, over the tasks that all sides have."""

import numpy as np
import pandas as pd
import pytest

from engine.figures.paired import difference_table


def table(right, state="merged", task="a", first=0):
    """A table of samples of one task in which some images are right."""
    index = np.arange(first, first + len(right))
    prediction = np.where(right, 1, 0)
    return pd.DataFrame(
        {"task": task, "index": index, "split": "evaluate", "state": state, "label": 1, "prediction": prediction}
    )


def test_a_side_is_compared_image_by_image_whatever_the_order_of_rows():
    merged = table([True] * 300 + [False] * 100)
    repaired = table([True] * 380 + [False] * 20, "surgery").sample(frac=1, random_state=0)
    tables = [pd.concat([repaired, merged])]
    found = difference_table({"Surgery": (tables, "surgery")}, (tables, "merged"), ["a"])
    (row,) = found.to_dict("records")
    assert row["difference"] == pytest.approx(20)
    assert 15 < row["low"] < 20 < row["high"] < 25
    assert (row["says"], row["images"], row["seeds"]) == ("higher", 400, 1)


def test_tasks_of_other_images_are_left_out_for_all():
    ours = [pd.concat([table([True] * 50), table([False] * 50, task="b")])]
    other = [pd.concat([table([True] * 50), table([False] * 50, task="b", first=10)])]
    found = difference_table({"B": (other, "merged"), "C": (ours, "merged")}, (ours, "merged"), ["a", "b"])
    assert found["images"].tolist() == [50, 50]
    assert found["tasks"].tolist() == [1, 1]
    assert found["says"].tolist() == ["undecided"] * 2, "50 images on which nothing changes"
    assert found["high"].tolist() == pytest.approx([6, 6])
    assert difference_table({"B": (other, "merged")}, (ours, "merged"), ["b"]).empty
    assert difference_table({"B": (other, "absent")}, (ours, "merged"), ["a", "b"]).empty


def test_seeds_are_paired_and_one_stands_for_all():
    seeds = [table([True] * (300 + 10 * seed) + [False] * (100 - 10 * seed)) for seed in range(3)]
    found = difference_table({"trained": (seeds, "merged")}, ([seeds[0]], "merged"), ["a"])
    assert found["difference"].tolist() == pytest.approx([2.5])
    assert found["seeds"].tolist() == [3]
    same = difference_table({"drawn": ([seeds[1]] * 3, "merged")}, ([seeds[0]] * 3, "merged"), ["a"])
    assert same["seeds"].tolist() == [0], "nothing was drawn"
    two = difference_table({"trained": (seeds, "merged")}, (seeds[:2], "merged"), ["a"])
    assert two.empty  # three seeds against two are no pairs
