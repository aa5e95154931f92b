"""Rooms import only rooms above them, the engine never imports Streamlit, and some rooms stay free of torch."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = [
    ("errors", "rounding", "types", "version"),
    ("masks",),
    ("recipe",),
    ("report",),
    ("catalog",),
    ("manifest",),
    ("sweeps",),
    ("experiments",),
    ("lessons",),
    ("store",),
    ("weights",),
    ("zoo",),
    ("merging",),
    ("features",),
    ("calibration",),
    ("analysis",),
    ("figures",),
    ("selfcheck",),
    ("pipeline",),
    ("service",),
    ("commands",),
    ("__main__",),
]
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}
HEAVY = ("torch", "open_clip", "umap", "dask", "distributed", "sklearn")
LIGHT = (
    "engine.errors",
    "engine.rounding",
    "engine.types",
    "engine.version",
    "engine.masks",
    "engine.recipe",
    "engine.report",
    "engine.catalog",
    "engine.manifest",
    "engine.store",
    "engine.sweeps",
    "engine.experiments",
    "engine.lessons",
    "engine.figures",
    "engine.zoo.images.data",
    "engine.zoo.importing.request",
    "engine.zoo.importing.roots",
    "engine.pipeline.zoos.import_checkpoints",
    "engine.pipeline.steps",
    "engine.pipeline.views.request",
    "engine.pipeline.run.projecting",
    "engine.pipeline.preflight.sweep",
    "engine.pipeline.preflight.estimate",
    "engine.service.client",
)


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imported(path: Path) -> list[str]:
    """Modules of the engine that a file imports, absolute."""
    package = path.relative_to(ROOT).with_suffix("").parts
    if package[-1] == "__init__":
        package = package[:-1]
        base = package
    else:
        base = package[:-1]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            prefix = ".".join(base[: len(base) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (prefix, node.module or "") if part)
            found += [module] if node.module else [f"{module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "engine").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path):
    own = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for module in imported(path):
        assert not module.startswith("streamlit"), f"{path.name} imports Streamlit"
        assert not module.startswith("pages"), f"{path.name} imports a page"
        if module.startswith("engine.") and own in LEVEL and own != "__init__":
            room = room_of(module)
            assert LEVEL[room] <= LEVEL[own], f"{own} imports {room}, which stands below it"


def test_every_room_is_listed():
    found = {path.stem for path in (ROOT / "engine").glob("*.py")} | {
        path.parent.name for path in (ROOT / "engine").glob("*/__init__.py")
    }
    assert found - {"__init__"} == set(LEVEL)


def test_every_package_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = [path.parent.relative_to(ROOT / "engine").parts for path in (ROOT / "engine").rglob("__init__.py")]
    assert set(project["tool"]["setuptools"]["packages"]) == {".".join(("mergelens", *parts)) for parts in folders}


def test_light_rooms_stay_light():
    code = f"import sys, {', '.join(LIGHT)}; print([m for m in {HEAVY!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
