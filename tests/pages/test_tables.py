"""Tables hold nothing that a spreadsheet computes, whoever named what is in them."""

import re
from pathlib import Path

import pandas as pd
from streamlit.testing.v1 import AppTest

from pages.shared.tables import _neutral

PAGES = Path(__file__).resolve().parents[2] / "pages"
FORMULA = '=HYPERLINK("http://x")'


def test_names_of_runs_are_no_formulas(workspace, open_app):
    row = workspace.finished(FORMULA)
    workspace.store.runs.edit(row.id, tags=["=1+1", "plain"])
    shown = open_app("runs").dataframe[0].value
    line = shown[shown["id"] == row.id].iloc[0]
    assert line["Run"] == f"'{FORMULA}"
    assert list(line["Tags"]) == ["'=1+1", "plain"]
    assert line["State"] == "Finished"


def test_numbers_and_plain_texts_stay():
    table = pd.DataFrame({"task": ["digits", None], "=change": [-1.5, 2.0], "found": [True, False]})
    shown = _neutral(table)
    assert list(shown) == ["task", "'=change", "found"]
    assert shown["'=change"].tolist() == [-1.5, 2.0]
    assert shown["task"][0] == "digits"
    assert shown["found"].dtype == bool


def edited_table():
    import pandas as pd
    import streamlit as st

    from pages.shared.tables import edit_table

    st.session_state["found"] = edit_table(pd.DataFrame({"class": ['=HYPERLINK("http://x")', "dog"], "count": [1, 2]}))


def test_a_table_to_be_edited_shows_no_formulas_and_keeps_them():
    app = AppTest.from_function(edited_table).run()
    assert not app.exception
    assert app.dataframe[0].value["class"].tolist() == [f"'{FORMULA}", "dog"]
    found = app.session_state["found"]
    assert found["class"].tolist() == [FORMULA, "dog"]
    assert found["count"].tolist() == [1, 2]


def test_pages_draw_tables_in_one_way():
    files = [path for path in PAGES.rglob("*.py") if path.name != "tables.py"]
    assert not [path.name for path in files if re.search(r"\.(dataframe|data_editor)\(", path.read_text("utf-8"))]
