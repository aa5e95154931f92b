"""The package asks for what it imports; the lock file holds what requirements.txt names, with hashes, and no host."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]


def pins(text):
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", text, re.MULTILINE)
    return {same(name): version for name, version in found}


def same(name):
    """Write a distribution's name as all do."""
    return re.sub(r"[-_.]+", "-", name).lower()


def asked_by_the_package():
    """Names in pyproject.toml, also of extras; ``a[b]`` asks for b too where that is a package of its own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    return {same(name) for one in listed for name in re.findall(r"[\w.-]+", one)}


def imported(path):
    """Top modules that a file imports, also inside functions; its own package's files are relative."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)


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


def test_the_package_asks_for_every_package_that_it_imports():
    asked, owners, lacking = asked_by_the_package(), packages_distributions(), {}
    for path in (ROOT / "engine").rglob("*.py"):
        for module in set(imported(path)) - sys.stdlib_module_names:
            if not {same(name) for name in owners.get(module, [module])} & asked:
                lacking.setdefault(module, path.relative_to(ROOT).as_posix())
    assert not lacking


def test_what_the_package_asks_for_is_pinned():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    asked = {same(re.match(r"[\w.-]+", one)[0]) for one in listed}
    assert asked <= set(pins((ROOT / "requirements.txt").read_text()))
