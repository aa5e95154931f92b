"""The guide's examples are complete: put into a copy of the program, they work, and touch what the guide says."""

import os
import subprocess
import sys

import pytest

from tests.project.guide import GUIDE, copy_program, examples, put
from tests.project.test_imports import ROOMS

MOST_FILES = {"A merge method": 2, "A calibrator": 2, "A view": 3, "An experiment": 1, "A lesson": 1}
CHECKED = (  # with the examples in place
    "tests/project/guide_walk.py",
    "tests/merging/test_contract.py",
    "tests/calibration/test_contract.py",
    "tests/catalog",
    "tests/project/test_imports.py",
)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A copy of the program with every example in its place."""
    folder = tmp_path_factory.mktemp("guide")
    copy_program(folder)
    for example in examples():
        for block in example.blocks:
            put(block, folder)
    return folder


def test_every_example_touches_as_few_files_as_it_says():
    found = {example.title: example for example in examples()}
    assert list(found) == list(MOST_FILES)
    for title, most in MOST_FILES.items():
        assert sorted({block.file for block in found[title].blocks}) == sorted(found[title].files)
        assert len(found[title].files) <= most


@pytest.mark.slow
def test_the_examples_work(program):
    names = "guide or coordinate_median or mean_shift or concentration or catalog or circle"
    command = [sys.executable, "-m", "pytest", "-x", "-k", names, *CHECKED]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(command, cwd=program, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_the_examples_pass_the_linter(program):
    """Their layout is checked with that of all other files, inside DESIGN.md."""
    files = [block.file for example in examples() for block in example.blocks if block.file.endswith(".py")]
    new = [file for file in files if files.count(file) == 1]
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", *new]
    done = subprocess.run(command, cwd=program, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_table_of_rooms_is_the_one_that_is_enforced():
    table = GUIDE.read_text("utf-8").partition("\n## Rooms\n")[2].partition("\n○")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = [name.strip(" `") for row in rows for name in row.replace("○", "").split(",")]
    assert listed == [room for rooms in ROOMS for room in rooms if room != "__main__"]
