"""The rule that judges claims: comparisons, clauses, controls, and how often it errs."""

import numpy as np
import pytest

from engine.analysis.paired import interval_of
from engine.errors import StoreError
from engine.experiments import Cell, Check, Rights, accuracy_side, judge
from engine.experiments.rights import Sheet, sheets_of
from engine.experiments.verdict import deviation, outcome_of, over_seeds, paired_parts
from tests.experiments.simulated import COLUMNS, outcomes

QUICK = 30  # repetitions; benchmarks/verdicts.py does a thousand


def cell(*values):
    return Cell(values=values, mean=sum(values) / len(values), sd=deviation(values))


def check(relation, **changes):
    values = {"text": "It is.", "measure": "m", "left": "a", "right": "b", "relation": relation, **changes}
    return Check.model_validate(values)


def seeds(*values):
    """Cells of five seeds around a value."""
    return cell(*(value + step for value in values for step in (-0.2, -0.1, 0.0, 0.1, 0.2)))


def rights(*rows, task="digits", images="held_out"):
    return Rights.of({task: np.array(rows, dtype=bool)}, {}, images)


@pytest.mark.parametrize(
    ("relation", "low", "high", "outcome"),
    [
        ("above", 0.1, 3.0, "seen"),
        ("above", -3.0, -0.1, "opposite seen"),
        ("above", -0.4, 0.4, "no difference"),
        ("above", -0.4, 0.6, "undecided"),
        ("below", -3.0, -0.1, "seen"),
        ("below", 0.1, 3.0, "opposite seen"),
        ("near", -0.4, 0.4, "seen"),
        ("near", 0.1, 0.4, "seen"),  # a difference, but none that counts
        ("near", 0.6, 0.9, "opposite seen"),
        ("near", 0.1, 0.9, "undecided"),
        ("above_or_near", -0.4, 3.0, "seen"),
        ("above_or_near", -0.6, 3.0, "undecided"),
        ("above_or_near", -3.0, -0.1, "opposite seen"),
    ],
)
def test_what_an_interval_allows_to_say(relation, low, high, outcome):
    from engine.analysis.paired import Difference

    assert outcome_of(check(relation), Difference((low + high) / 2, low, high, 100, 5)) == outcome
    moved = Difference((low + high) / 2 + 7, low + 7, high + 7, 100, 5)
    assert outcome_of(check(relation, plus=7), moved) == outcome


def test_one_seed_without_images_decides_nothing():
    findings, verdict, _ = judge([check("above")], {"a": {"m": cell(90.0)}, "b": {"m": cell(10.0)}}, {})
    assert (findings[0].outcome, findings[0].low, verdict) == ("undecided", None, "undecided here")
    counted = judge([check("above")], {"a": {"m": cell(90.0)}, "b": {"m": cell(10.0)}}, {}, ["m"])
    assert (counted[0][0].outcome, counted[0][0].basis) == ("seen", "count")


def test_seeds_alone_give_students_interval():
    left, right = cell(60.0, 80.0, 70.0), cell(58.0, 77.0, 69.0)
    found = over_seeds(left, right)
    assert found.mean == pytest.approx(2.0)
    assert found.high - found.mean == pytest.approx(4.302653 * 1.0 / 3**0.5, rel=1e-5)
    assert over_seeds(cell(1.0), cell(2.0)) is None


def test_numbers_that_rise_with_each_other_over_methods_have_fishers_interval():
    known = np.array([[1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 1.0, 5.0, 4.0, 6.0]])
    table = {name: {"m": cell(x), "n": cell(y)} for name, x, y in zip("abcde", *known, strict=True)}
    sides = {"left": "", "right": "", "right_measure": "n", "over": tuple("abcde")}
    rises, falls = (check(relation, **sides) for relation in ("rises_with", "falls_with"))
    found = judge([rises], table, {})[0][0]
    value = np.corrcoef(known)[0, 1]
    assert (found.difference, found.basis, found.outcome) == (pytest.approx(value), "points", "undecided")
    reach = np.arctanh(value) + 1.959964 / np.sqrt(2) * np.array([-1, 1])
    assert [found.low, found.high] == pytest.approx(np.tanh(reach))
    close = {name: {"m": row["m"], "n": cell(row["m"].mean ** 2)} for name, row in table.items()}
    assert [judge([one], close, {})[0][0].outcome for one in (rises, falls)] == ["seen", "opposite seen"]
    three = {name: close[name] for name in "abc"}
    assert judge([rises], three, {})[0][0].outcome == "not measured"


def test_controls_decide_what_a_seen_clause_is_called():
    table = {"a": {"m": seeds(80.0)}, "b": {"m": seeds(70.0)}, "c": {"m": seeds(80.05)}, "d": {"m": seeds(60.0)}}
    claim = check("above", name="first")
    rival = check("above_or_near", left="c", right="a", control=True, text="C does as well.")
    other = check("above_or_near", left="a", right="c", control=True, text="A does as well.")
    failing = check("above_or_near", left="d", right="a", control=True, text="D does as well.")
    assert judge([claim], table, {})[1] == "seen here"
    assert judge([claim, failing], table, {})[1] == "holds here"
    findings, verdict, reason = judge([claim, rival, failing, other], table, {})
    assert verdict == "seen, and a control does as well"
    assert findings[0].explained_by == ("C does as well.", "A does as well.")  # all of them
    assert "C does as well." in reason
    assert judge([check("below"), rival], table, {})[1] == "opposite seen here"
    assert judge([rival], table, {})[1] == "not judged"
    assert judge([check("above", right="absent")], table, {})[1] == "not judged"


def test_what_was_not_measured_is_no_part_of_the_verdict():
    table = {"a": {"m": seeds(80.0)}, "b": {"m": seeds(70.0)}}
    claim, more, absent = check("above"), check("above", text="Again."), check("above", right="absent")
    assert judge([claim, absent], table, {})[1:] == ("seen here", f"{claim.text} Not measured: 1.")
    assert judge([claim, more, absent], table, {})[1:] == ("seen here", "2 of 2 clauses seen. Not measured: 1.")


def test_what_is_asked_here_is_no_part_of_the_verdict():
    table = {"a": {"m": seeds(80.0)}, "b": {"m": seeds(70.0)}, "c": {"m": seeds(80.0)}}
    claim, asked = check("above"), check("below", asked=True, text="A is below B (asked here).")
    findings, verdict, reason = judge([claim, asked], table, {})
    assert [finding.verdict for finding in findings] == ["seen here", "opposite seen here"]
    assert verdict == "seen here"
    assert reason == f"{claim.text} Asked here: 0 of 1 seen."
    assert judge([claim, check("below")], table, {})[1] == "differs by clause"
    assert judge([asked], table, {})[1] == "not judged"


def test_three_controls_are_named_in_the_sentence_on_a_claim_and_all_by_the_clause():
    table = {"a": {"m": seeds(80.0)}, "b": {"m": seeds(70.0)}, "c": {"m": seeds(80.0)}}
    rivals = [check("above_or_near", left="c", right="a", control=True, text=f"Rival {n} does.") for n in range(5)]
    for count, end in ((3, "Rival 2 does."), (4, "And 1 more control."), (5, "And 2 more controls.")):
        findings, _, reason = judge([check("above"), *rivals[:count]], table, {})
        assert reason.endswith(end)
        assert len(findings[0].explained_by) == count


def test_an_undecided_control_supports_nothing():
    table = {"a": {"m": seeds(80.0)}, "b": {"m": seeds(70.0)}, "c": {"m": cell(60.0, 99.0, 80.0, 81.0, 79.0)}}
    rival = check("above_or_near", left="c", right="a", control=True, text="C does as well.")
    findings, verdict, _ = judge([check("above"), rival], table, {})
    assert findings[1].outcome == "undecided"
    assert verdict == "seen here"


def test_a_control_that_is_the_clause_from_the_other_side_supports_nothing():
    table = {name: {"m": seeds(level)} for name, level in (("a", 80.0), ("b", 70.0), ("same", 70.0), ("c", 72.0))}
    rivals = [check("above_or_near", left=name, right="a", control=True) for name in ("same", "c")]
    assert judge([check("above"), rivals[0]], table, {})[1] == "seen here"
    assert judge([check("above"), *rivals], table, {})[1] == "holds here"


def test_objections_to_one_clause_leave_the_others():
    table = {"a": {"m": seeds(80.0)}, "b": {"m": seeds(70.0)}, "c": {"m": seeds(80.0)}}
    clauses = [check("above", name="one"), check("above", left="c", name="two")]
    rival = check("above_or_near", left="c", right="a", control=True, explains=("one",))
    findings, verdict, reason = judge([*clauses, rival], table, {})
    assert [finding.verdict for finding in findings[:2]] == ["seen, and a control does as well", "seen here"]
    assert verdict == "seen, and a control does as well"
    assert reason.startswith("2 of 2 clauses seen")
    assert judge([clauses[0], check("below", name="two")], table, {})[1] == "differs by clause"


def test_correctness_is_kept_to_the_bit():
    generator = np.random.default_rng(3)
    inside = {"a": generator.random((5, 33)) < 0.9, "b": generator.random((5, 8)) < 0.5}
    outside = {"c": generator.random((5, 12)) < 0.7}
    first = Rights.of(inside, outside, "held_out")
    second = Rights.of(*({task: ~rows[:2] for task, rows in side.items()} for side in (inside, outside)), "held_out")
    other = Rights.of({"a": inside["a"][:1]}, {}, "held_out")
    sheets = sheets_of({"first": first, "other": other, "second": second})
    assert [list(sheet.seeds.items()) for sheet in sheets] == [[("first", 5), ("second", 2)], [("other", 1)]]
    again = Sheet.model_validate_json(sheets[0].model_dump_json()).rights()
    assert (again["second"].whole == second.whole).all()
    for before, after in zip((inside, outside), again["first"].by_task(), strict=True):
        assert list(before) == list(after)
        assert all((before[task] == after[task]).all() for task in before)
    for wrong in ("", "!!", "eJw=", sheets[0].bits[:-8]):
        with pytest.raises(StoreError, match="cannot be read"):
            sheets[0].model_copy(update={"bits": wrong}).rights()["first"].by_task()


def test_accuracies_and_the_h_score_come_from_the_images():
    packed = Rights.of(
        {"a": np.array([[1, 1, 0, 0]], bool), "b": np.array([[1, 1, 1, 0]], bool)},
        {"c": np.array([[1, 0]], bool)},
        "x",
    )

    def at(path, mean=0.0):
        side = accuracy_side(packed, path, "merged", mean)
        return None if side is None else np.mean([part.mean() for part in side.parts.values()])

    assert at("average.merged.in") == pytest.approx(62.5)
    assert at("average.merged.out") == 50
    assert at("average.merged.h_score") == pytest.approx(2 * 62.5 * 50 / 112.5)
    assert at("accuracy.merged.b") == 75
    assert at("accuracy.merged.z") is None
    assert at("bias.merged.l1") is None
    assert at("average.pretrained.in") is None, "these are the merged model's images"
    assert at("accuracy.pretrained.b") is None


def test_the_linearised_h_score_has_the_interval_of_the_resampled_one():
    generator = np.random.default_rng(0)
    first, second = generator.random((2, 1, 600)) < np.array([[[0.7]], [[0.8]]])
    out = generator.random((2, 1, 400)) < np.array([[[0.6]], [[0.5]]])
    packed = [Rights.of({"a": inside}, {"b": outside}, "x") for inside, outside in ((first, out[0]), (second, out[1]))]
    sides = [accuracy_side(side, "average.merged.h_score", "merged", 0.0) for side in packed]
    found = interval_of(paired_parts(*sides))
    drawn = []
    for _ in range(4000):
        rows, others = generator.integers(600, size=600), generator.integers(400, size=400)
        scores = [
            200 * a[0, rows].mean() * b[0, others].mean() / (a[0, rows].mean() + b[0, others].mean())
            for a, b in ((first, out[0]), (second, out[1]))
        ]
        drawn.append(scores[0] - scores[1])
    assert np.quantile(drawn, [0.025, 0.975]) == pytest.approx([found.low, found.high], abs=0.35)


def test_other_images_are_never_paired():
    sides = [
        accuracy_side(rights([1, 0, 1, 1], images=images), "average.merged.in", "merged", 75.0)
        for images in ("one", "two")
    ]
    assert len(paired_parts(*sides)) == 2  # each side's own images
    assert len(paired_parts(sides[0], sides[0])) == 1
    unpaired, paired = interval_of(paired_parts(*sides)), interval_of(paired_parts(sides[0], sides[0]))
    assert unpaired.mean == paired.mean == 0
    assert unpaired.high > paired.high == 0
    fewer = accuracy_side(rights([1, 0, 0, 0], images="two"), "average.merged.in", "merged", 25.0)
    assert interval_of(paired_parts(sides[0], fewer)).mean == 50


def test_groups_of_experts_are_averaged_by_image():
    whole = Rights.of({}, {"c#0": np.array([[1, 0, 1]], bool), "c#1": np.array([[1, 0, 0]], bool)}, "x")
    side = accuracy_side(whole, "average.merged.out", "merged", 50.0)
    assert [part.tolist() for part in side.parts.values()] == [[[100.0, 0.0, 50.0]]]


@pytest.mark.slow
def test_no_difference_is_rarely_called_one_and_two_points_are_seen():
    assert len(COLUMNS) == 3
    none = outcomes(QUICK, 0.0, np.random.default_rng(1))
    two = outcomes(QUICK, 2.0, np.random.default_rng(2))
    assert none["seen"] <= 0.1 * QUICK
    assert two["seen"] >= 0.75 * QUICK
    assert none["holds"] <= none["seen"]
