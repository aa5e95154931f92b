"""Numbers for people are rounded alike everywhere."""

import pytest

from engine.figures.drawing import number
from engine.rounding import rounded
from pages.shared.chrome import percent


@pytest.mark.parametrize(
    ("value", "digits", "signed", "text"),
    [
        (95.25, 1, False, "95.3"),  # a tie in binary; to even it would be 95.2
        (95.75, 1, False, "95.8"),
        (95.35, 1, False, "95.3"),  # stored as 95.349…, no tie
        (-2.25, 1, True, "-2.3"),
        (11.525, 1, True, "+11.5"),
        (0.0, 1, True, "+0.0"),
        (-0.04, 1, False, "0.0"),
        (0.5, 0, False, "1"),
        (1e-9, 3, False, "0.000"),
        (1234567.0, 1, False, "1234567.0"),
    ],
)
def test_halves_go_away_from_zero_as_in_browsers(value, digits, signed, text):
    assert rounded(value, digits, signed=signed) == text


def test_sentences_tables_and_figures_agree():
    assert percent(95.25) == "95.3\u00a0%"
    assert number(95.25) == "95.3"
    assert (percent(None), number(None), number(float("nan"))) == ("–", "–", "–")
