"""The command that looks at an installation."""

from __future__ import annotations

import os
import time

import pytest
from typer.testing import CliRunner

from engine.__main__ import app
from engine.store import Store


def look():
    return CliRunner().invoke(app, ["doctor"])


def test_a_sound_store_is_said_to_be_so():
    store = Store()
    store.runs.submit("run", {})
    store.backups.make("asked-for")
    found = look()
    assert found.exit_code == 0, found.output
    for text in (
        "torch ",
        "transformers ",
        "can be written to",
        "holds 1 runs",
        "less than an hour old",
        "GB are free",
    ):
        assert text in found.output
    assert "fault" not in found.output


def test_it_makes_no_store_where_there_is_none():
    assert "no store at" in look().output
    assert not Store().root.exists()


def test_what_is_wrong_is_named_with_what_to_do(monkeypatch, tmp_path):
    store = Store()
    store.runs.submit("run", {})
    file = store.backups.make("asked-for").file
    os.utime(file, (time.time() - 5 * 86_400,) * 2)
    store.root.chmod(0o755)
    found = look().output
    assert "chmod o-rwx" in found
    assert "latest backup is 5 days old" in found
    monkeypatch.setenv("MERGELENS_ROOTS", str(tmp_path / "nothing"))
    store.database.close()
    (store.root / "runs.sqlite").unlink()
    (store.root / "runs.sqlite").write_bytes(b"x" * 5000)
    result = look()
    assert result.exit_code == 1
    assert "runs restore" in result.output
    assert "No folder of MERGELENS_ROOTS" in result.output


@pytest.mark.parametrize("package", ["alembic"])
def test_a_missing_package_is_named(monkeypatch, package):
    from engine.commands import doctor

    monkeypatch.setattr(doctor, "PACKAGES", (package, "no-such-package"))
    found = look()
    assert found.exit_code == 1
    assert "no-such-package is not installed" in found.output


def test_folders_that_lie_elsewhere_are_looked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("MERGELENS_MOUNTS", f"/srv/zoos={tmp_path}:/srv/store={tmp_path / 'nowhere'}")
    found = look()
    assert f"/srv/zoos lies at {tmp_path} here" in found.output
    assert f"{tmp_path / 'nowhere'} cannot be read" in found.output
    assert found.exit_code == 1
