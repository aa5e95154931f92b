"""Numbers for people are rounded alike everywhere."""

import pytest

from engine.figures.drawing import number
from engine.rounding import bytes_text, rounded
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


def test_bytes_have_a_unit_that_fits():
    said = {0: "0.0 MB", 4e5: "0.4 MB", 9.94e6: "9.9 MB", 1.25e7: "13 MB", 1e9: "1.0 GB", 3.25e9: "3.3 GB"}
    assert {count: bytes_text(count) for count in said} == said
