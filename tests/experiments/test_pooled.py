"""Sets of experts by other seeds, judged as one."""

import numpy as np
import pytest

from engine.errors import ZooError
from engine.experiments import Cell, Rights, pool
from engine.experiments.claims import sets_of
from tests.experiments.made_results import SPEC, result


def test_sets_that_differ_more_than_their_images_decide_less_than_each_alone():
    above, below = result(1, {"left": 0.9, "right": 0.7}), result(2, {"left": 0.7, "right": 0.9})
    assert [each.findings[0].outcome for each in (above, below)] == ["seen", "opposite seen"]
    pooled = pool(SPEC, [above, below])
    found = pooled.findings[0]
    assert found.outcome == "undecided"
    assert found.basis == "images"
    mean = np.mean([each.findings[0].difference for each in (above, below)])
    assert found.difference == pytest.approx(mean, abs=1e-12)
    assert found.low < min(each.findings[0].low for each in (above, below))
    assert (pooled.sets, pooled.seconds) == (2, 4.0)
    assert "2 sets of experts" in sets_of(pooled)


def test_sets_that_agree_decide_as_each_does_and_keep_what_each_chose():
    sets = [result(number, {"left": 0.9, "right": 0.7}) for number in (1, 2, 3)]
    pooled = pool(SPEC, sets)
    assert pooled.findings[0].outcome == "seen"
    assert pooled.points[0].seeds == (0, 1, 2)
    assert pooled.points[0].cells["accuracy"].sd > 0
    assert pooled.points[1].tuned[0].said == "1, 2, 3"
    inside, _ = pooled.points[0].rights.by_task()
    for row, each in zip(inside["digits"], sets, strict=True):
        np.testing.assert_array_equal(row, each.points[0].rights.by_task()[0]["digits"][0])


def test_what_has_no_images_has_an_interval_over_the_sets():
    sets = [result(number, {"left": 0.9, "right": 0.7}) for number in (1, 2, 3)]
    assert sets[0].findings[1].outcome == "undecided"  # one set says nothing of such a number
    found = pool(SPEC, sets).findings[1]
    assert (found.basis, found.outcome) == ("seeds", "opposite seen")
    assert found.difference == pytest.approx(0.04)


def test_seeds_within_a_set_are_no_sets():
    """Copies of a set's only seed change nothing: not the value, not the interval, not the number of seeds."""
    shares = {"left": 0.9, "right": 0.7}
    sets = [result(number, shares) for number in (1, 2)]
    copied = [each.model_copy(update={"points": (with_seeds(each.points[0], 3), *each.points[1:])}) for each in sets]
    plain, more = pool(SPEC, sets), pool(SPEC, copied)
    assert more.findings == plain.findings
    assert [len(point.seeds) for point in more.points] == [6, 2]
    assert more.points[0].rights.seeds == 6, "what was right is kept for each of them"


def test_seeds_within_a_set_count_alike_in_whatever_order():
    (one, two, more), found = (result(number, {"left": 0.9, "right": 0.7}) for number in (1, 2, 5)), []
    for order in ((one, more), (more, one)):
        digits = np.concatenate([each.points[0].rights.by_task()[0]["digits"] for each in order])
        left = one.points[0].model_copy(update={"rights": Rights.of({"digits": digits}, {}, "held out")})
        found.append(pool(SPEC, [one.model_copy(update={"points": (left, one.points[1])}), two]).findings)
    assert found[0] == found[1]


def with_seeds(point, seeds):
    inside, _ = point.rights.by_task()
    rights = Rights.of({task: np.repeat(right, seeds, axis=0) for task, right in inside.items()}, {}, "held out")
    cells = {name: Cell(values=cell.values * seeds, mean=cell.mean, sd=0.0) for name, cell in point.cells.items()}
    return point.model_copy(update={"seeds": tuple(range(seeds)), "rights": rights, "cells": cells})


def test_a_point_that_failed_with_one_set_is_not_measured():
    good, bad, third = (result(number, {"left": 0.9, "right": 0.7}) for number in (1, 2, 3))
    lost = bad.points[1].model_copy(update={"cells": {}, "rights": None, "tuned": (), "failed": "no such expert"})
    pooled = pool(SPEC, [good, bad.model_copy(update={"points": (bad.points[0], lost)}), third])
    assert {finding.outcome for finding in pooled.findings} == {"not measured"}
    assert pooled.points[1].failed == "no such expert"
    bare = bad.points[1].model_copy(update={"rights": None})
    pooled = pool(SPEC, [good, bad.model_copy(update={"points": (bad.points[0], bare)}), third])
    assert pooled.findings[0].basis == "seeds", "of one set nobody knows which images were right"


def test_one_set_is_its_own_result():
    only = result(1, {"left": 0.9, "right": 0.7})
    assert pool(SPEC, [only]) is only


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda: result(1, {"left": 0.9, "right": 0.7}), "are the same"),
        (lambda: result(2, {"left": 0.9, "right": 0.7}, images=300), "made cannot be judged as one"),
        (lambda: result(2, {"left": 0.9, "right": 0.7}, zoo="else"), "made, else cannot be judged as one"),
    ],
)
def test_what_is_no_other_set_is_refused(other, said):
    with pytest.raises(ZooError, match=said):
        pool(SPEC, [result(1, {"left": 0.9, "right": 0.7}), other()])


@pytest.mark.parametrize(
    ("field", "value"),
    [("form", "0" * 64), ("quick", True), ("protocol", "paper"), ("split_seed", 1), ("images", (400, 399))],
)
def test_sets_that_were_measured_in_another_way_are_refused(field, value):
    one, two = (result(number, {"left": 0.9, "right": 0.7}) for number in (1, 2))
    assert getattr(two, field) != value
    with pytest.raises(ZooError, match="measured in the same way"):
        pool(SPEC, [one, two.model_copy(update={field: value})])


def test_seconds_cells_and_the_digest_are_of_all_sets():
    sets = [result(number, {"left": 0.9, "right": 0.7}) for number in (1, 2, 4)]
    sets[1] = sets[1].model_copy(update={"seconds": 5.26})
    pooled = pool(SPEC, sets)
    barrier = pooled.points[0].cells["barrier"]
    assert barrier.values == pytest.approx((0.19, 0.20, 0.22))
    assert barrier.mean == pytest.approx(0.61 / 3)
    assert barrier.sd == pytest.approx(np.std([0.19, 0.20, 0.22], ddof=1))
    assert pooled.seconds == 9.3
    assert pooled.zoo_digest not in {each.zoo_digest for each in sets}
    assert pooled.zoo_digest != pool(SPEC, sets[:2]).zoo_digest
