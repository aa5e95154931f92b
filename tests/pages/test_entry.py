"""The one place that reaches into Streamlit: it has to be there for a reason, and to work."""

import subprocess
import sys
from pathlib import Path

import pytest
from streamlit.runtime.pages_manager import PagesManager
from streamlit.runtime.scriptrunner import script_runner

from pages.shared import entry
from tests.pages.conftest import ROOT


@pytest.fixture(autouse=True)
def _flag(monkeypatch):
    monkeypatch.setattr(PagesManager, "uses_pages_directory", None)


def test_streamlit_still_opens_files_of_a_folder_named_pages():
    """Once it no longer does, `pages/shared/entry.py` can go."""
    PagesManager(str(ROOT / "app.py"))
    assert PagesManager.uses_pages_directory
    assert "if PagesManager.uses_pages_directory:" in Path(script_runner.__file__).read_text("utf-8")


def test_the_flag_is_kept_by_managers_made_later():
    entry.make_the_app_the_entry()
    PagesManager(str(ROOT / "app.py"))
    assert PagesManager.uses_pages_directory is False


def test_a_page_opened_by_streamlit_starts_over_once(monkeypatch):
    again = []
    monkeypatch.setattr(entry.st, "rerun", lambda: again.append(True))
    PagesManager(str(ROOT / "app.py"))
    entry.enter_through_the_app()
    entry.enter_through_the_app()
    assert again == [True]


def test_what_the_first_page_imports_is_loaded_before_serving(tmp_path):
    """Hardly a module of ours is left for the script thread to import."""
    code = """
import sys
from importlib import import_module
import app
for name in app.LOADED_AHEAD:
    import_module(name)
before = {name for name in sys.modules if name.startswith(("engine", "pages"))}
from streamlit.testing.v1 import AppTest
import pages.shared.service
pages.shared.service.ensure_service = lambda store: ""
assert not AppTest.from_file("app.py", default_timeout=120).run().exception
late = {name for name in sys.modules if name.startswith(("engine", "pages"))} - before
assert not late, late
"""
    environment = {"MERGELENS_STORE": str(tmp_path), "PATH": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
