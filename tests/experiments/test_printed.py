"""Results as the command line prints them."""

from engine.commands.experiment import printed
from engine.experiments import read_experiment, read_result
from engine.experiments.spec import FOLDER


def test_shipped_results_are_printed_with_what_was_measured():
    spec, result = read_experiment("prob-surgery-gap"), read_result(FOLDER / "prob-surgery-gap.json")
    text = printed(spec, result)
    correlation = next(finding for finding in result.findings if finding.left is None)
    assert result.verdict in text
    assert f"{correlation.text} {correlation.verdict} (" in text, "a correlation has no two sides"


def test_a_printed_result_does_not_put_all_points_under_one_protocol():
    spec, result = read_experiment("transductive"), read_result(FOLDER / "transductive.json")
    assert any(point.set.get("probe", {}).get("protocol") == "paper" for point in spec.points)
    assert "protocol held out unless a point says otherwise, split seed 0," in printed(spec, result)
