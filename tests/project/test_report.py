"""The report's schema is the exported one, and a report that is of another form is refused."""

import pytest

from engine.errors import StoreError
from engine.manifest import ASSETS
from engine.report import Averages, read_report, schema_json


def test_the_exported_schema_is_the_present_one():
    assert (ASSETS / "report.schema.json").read_text() == schema_json(), "run `make schema`"


def test_averages_are_written_under_the_names_of_the_schema():
    document = Averages(within=80.0, out=60.0).model_dump(mode="json")
    assert document == {"in": 80.0, "out": 60.0, "h_score": None, "recovered": None}
    assert Averages.model_validate(document).within == 80.0


def test_a_missing_report_says_so(tmp_path):
    with pytest.raises(StoreError, match="There is no report"):
        read_report(tmp_path)


def test_a_report_of_another_form_names_the_place(tmp_path):
    (tmp_path / "report.json").write_text('{"schema_version": 2}')
    with pytest.raises(StoreError, match="schema_version"):
        read_report(tmp_path)
