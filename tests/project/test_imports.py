"""Rooms import only rooms above them, no two files import each other, and some rooms stay free of torch."""

import ast
import subprocess
import sys
import tomllib
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = [
    ("archives", "ending", "errors", "layouts", "mounts", "outgoing", "rounding", "shipped", "types", "version"),
    ("masks",),
    ("recipe",),
    ("preparation", "report"),
    ("catalog",),
    ("manifest",),
    ("sweeps",),
    ("store",),
    ("weights",),
    ("zoo",),
    ("merging",),
    ("features",),
    ("training",),
    ("calibration",),
    ("alignment",),
    ("analysis",),
    ("experiments",),
    ("lessons",),
    ("figures",),
    ("selfcheck",),
    ("pipeline",),
    ("service",),
    ("commands",),
    ("__main__",),
]
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}
HEAVY = ("torch", "open_clip", "transformers", "umap", "dask", "distributed", "sklearn")
LIGHT = (
    "engine.archives",
    "engine.ending",
    "engine.errors",
    "engine.layouts",
    "engine.mounts",
    "engine.outgoing",
    "engine.rounding",
    "engine.types",
    "engine.version",
    "engine.masks",
    "engine.preparation",
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
    "engine.zoo.modalities",
    "engine.zoo.importing.request",
    "engine.zoo.importing.roots",
    "engine.pipeline.zoos.aligning",
    "engine.pipeline.zoos.import_checkpoints",
    "engine.pipeline.steps",
    "engine.pipeline.kinds",
    "engine.pipeline.run.findings",
    "engine.pipeline.run.projecting",
    "engine.pipeline.preflight.sweep",
    "engine.pipeline.preflight.estimate",
    "engine.pipeline.preflight.views",
    "engine.pipeline.offered",
    "engine.service.client",
    "engine.service.health",
    "engine.service.journal",
)


# Rooms of the pages: which of them each may import. The files at the top, one a page, may import all of them.
PAGE_ROOMS = {
    "shared": set(),
    "forms": {"shared"},
    "features": {"shared"},
    "sections": {"shared", "forms", "features"},
}


def name_of(path: Path) -> str:
    """The dotted name of a file; that of a package's face ends in ``__init__``."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


FILES = {name_of(path): path for top in ("engine", "pages") for path in (ROOT / top).rglob("*.py")} | {
    "app": ROOT / "app.py"
}
PACKAGES = sorted({name.rpartition(".")[0] for name in FILES if "." in name})


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@cache
def imported(name: str) -> frozenset[str]:
    """Everything that a file imports, absolute, also inside functions; files of our own by their names in FILES."""
    package = name.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {_file(f"{module}.{alias.name}") or _file(module) or module for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {_file(alias.name) or alias.name for alias in node.names}
    return frozenset(found - {name})


def _file(module: str) -> str | None:
    return next((name for name in (module, f"{module}.__init__") if name in FILES), None)


@pytest.mark.parametrize("name", sorted(name for name in FILES if name.startswith("engine.")))
def test_imports_go_one_way(name):
    own = room_of(name)
    for module in imported(name):
        assert not module.startswith("streamlit"), f"{name} imports Streamlit"
        assert not module.startswith(("pages", "app")), f"{name} imports a page"
        if module.startswith("engine.") and own in LEVEL:
            room = room_of(module)
            assert LEVEL[room] <= LEVEL[own], f"{own} imports {room}, which stands below it"


@pytest.mark.parametrize("name", sorted(name for name in FILES if name.startswith("pages.")))
def test_pages_go_one_way(name):
    own, *inner = name.split(".")[1:]
    for module in imported(name):
        assert module.split(".")[0] not in HEAVY, f"{name} imports {module}; only the engine computes"
        assert module != "app", f"{name} imports the app that shows it"
        if module.startswith("pages."):
            room = room_of(module)
            assert room in PAGE_ROOMS, f"{name} imports the page {module}"
            assert not inner or room == own or room in PAGE_ROOMS[own], f"{own} imports {room}, which stands below it"


def test_every_room_of_the_pages_is_listed():
    assert {path.name for path in (ROOT / "pages").iterdir() if (path / "__init__.py").is_file()} == set(PAGE_ROOMS)


def child_of(package: str, name: str) -> str:
    """The file or package directly inside a package that a file belongs to; '' for a file elsewhere."""
    return name.removeprefix(f"{package}.").split(".")[0] if name.startswith(f"{package}.") else ""


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_inside_a_package_goes_in_circles(package):
    """Neither files nor packages inside it, nor its face: a circle of files anywhere shows in one of the packages."""
    needs = defaultdict(set)
    for name in FILES:
        if own := child_of(package, name):
            others = {child_of(package, module) for module in imported(name)}
            needs[own] |= others - {own, ""}
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        pytest.fail(f"imports inside {package} go in a circle: {' ← '.join(error.args[1])}")


def test_every_room_is_listed():
    found = {path.stem for path in (ROOT / "engine").glob("*.py")} | {
        path.parent.name for path in (ROOT / "engine").glob("*/__init__.py")
    }
    assert found - {"__init__"} == set(LEVEL)


def test_every_package_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = [path.parent.relative_to(ROOT / "engine").parts for path in (ROOT / "engine").rglob("__init__.py")]
    data = {"mergelens.assets"}  # a folder beside the package, put inside it
    named = set(project["tool"]["setuptools"]["packages"])
    assert named - data == {".".join(("mergelens", *parts)) for parts in folders}
    assert data <= named


@pytest.mark.processes
def test_light_rooms_stay_light():
    code = f"import sys, {', '.join(LIGHT)}; print([m for m in {HEAVY!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
