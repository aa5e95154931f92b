"""Every method of the survey's table stands for something here, or says why not."""

from engine.catalog import CALIBRATORS, MERGE_METHODS, TRANSFORMS
from engine.catalog.survey import BASELINES, TABLE

ROWS = {**MERGE_METHODS, **TRANSFORMS, **CALIBRATORS}


def test_places_run_from_one_without_a_gap():
    assert [row.entry.place for row in TABLE] == list(range(1, len(TABLE) + 1))


def test_a_row_that_stands_with_another_stands_for_a_method():
    for row in ROWS.values():
        assert not (row.survey and row.survey_with), row.name
        assert not row.survey_with or ROWS[row.survey_with].survey, row.name
    listed = {name for row in TABLE for name in (*row.merges, *row.transforms, *row.calibrators)}
    assert listed == {row.name for row in ROWS.values() if row.survey or row.survey_with}


def test_baselines_say_why_nothing_stands_for_them():
    for row in BASELINES:
        assert row.entry.remark, row.entry.method
        assert row.state, row.entry.method


def test_what_the_table_says_fits_the_rows():
    """Dynamic methods yield weights by task or sample; where we need other images than the survey says, we say so."""
    for row in TABLE:
        if not row.merges:
            continue
        first = MERGE_METHODS[row.merges[0]]
        assert (first.yields != "static") == row.entry.dynamic, row.entry.method
        if row.entry.data == "none":
            assert not first.needs, row.entry.method
        elif row.entry.data == "labelled validation" and "validation" not in first.needs:
            assert "unlabelled" in first.needs, row.entry.method
            assert row.entry.remark, row.entry.method
        elif row.entry.data == "unlabelled test":
            assert first.needs == {"unlabelled", "heads"}, row.entry.method
