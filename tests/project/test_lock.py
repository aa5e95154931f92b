"""The lock file holds what requirements.txt names, with hashes, and names no host."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def pins(text):
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


LOCK = (ROOT / "requirements.lock").read_text()


def test_every_requirement_is_locked_at_its_version():
    asked = pins((ROOT / "requirements.txt").read_text())
    locked = pins(LOCK)
    assert {name: locked.get(name) for name in asked} == asked
    assert {"starlette", "tornado", "uvicorn"} <= set(locked)


def test_every_locked_package_has_hashes():
    entries = re.split(r"^(?=[A-Za-z0-9])", LOCK, flags=re.MULTILINE)[1:]
    assert len(entries) > 80
    assert [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_the_driver_for_postgresql_is_locked_with_the_same_companions():
    asked, extra = pins((ROOT / "deploy/postgresql.txt").read_text()), (ROOT / "deploy/postgresql.lock").read_text()
    found, main = pins(extra), pins(LOCK)
    assert {name: found.get(name) for name in asked} == asked
    assert {name: main.get(name, version) for name, version in found.items()} == found
    assert [one.splitlines()[0] for one in re.split(r"^(?=[a-z])", extra, flags=re.M)[1:] if "--hash=" not in one] == []


def test_no_host_is_named():
    for text in (LOCK, (ROOT / "deploy/postgresql.lock").read_text()):
        assert not re.search(r"https?://|--index|--find-links", text)
