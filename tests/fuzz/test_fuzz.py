"""A part of the fuzzing with every run of the tests: seeded, so that the same cases are run everywhere."""

import os
import re
from pathlib import Path

import psutil
import pytest

from engine.errors import EngineError
from tests.fuzz.__main__ import Fuzzer
from tests.fuzz.targets import check_message
from tests.fuzz.worker import MEMORY, Breach, Guard

CASES = 500
VISITS = 24
PATHS = re.compile(r"[0-9a-f]{6,}")  # temporary names and addresses


@pytest.fixture(scope="module")
def fuzzer():
    made = Fuzzer()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def files(fuzzer):
    return [kind for kind, program in fuzzer.kinds.items() if program == "tests.fuzz.worker"]


def test_500_spoiled_files_are_read_or_refused_with_a_reason(fuzzer, files):
    told = []
    fuzzer.say = told.append
    found = fuzzer.run(fuzzer.cases(CASES, only=files))
    assert not found["failures"], "\n".join(told)
    refused = sum(count for name, count in found["counts"].items() if name.endswith("refused"))
    assert len(files) >= 10
    assert refused > CASES / 4, "hardly anything was spoiled"


def test_a_case_is_the_same_every_time(fuzzer, files):
    cases = [case for case in fuzzer.cases(60, seed=1000, only=files) if not case.startswith("artefact")]
    first, again = ([PATHS.sub("", str(fuzzer.outcome(case))) for case in cases] for _ in range(2))
    assert first == again


def test_the_app_answers_addresses_and_messages_of_any_kind_with_a_page_or_a_sentence(fuzzer):
    told = []
    fuzzer.say = told.append
    found = fuzzer.run(fuzzer.cases(VISITS, only=["address", "component", "message"]))
    assert not found["failures"], "\n".join(told)
    assert found["counts"]["component read"]
    assert found["counts"]["address refused"]


@pytest.mark.parametrize("name", ["tests.fuzz.worker", "tests.fuzz.visitor"])
def test_the_operating_system_bounds_the_memory(fuzzer, name):
    [process] = [one for one in psutil.Process().children(recursive=True) if name in one.cmdline()]
    if name.endswith("visitor"):
        [process] = process.children()
    limit = process.rlimit(psutil.RLIMIT_AS)[0]
    assert MEMORY < limit < process.memory_info().vms + MEMORY + 2**28


@pytest.fixture
def guard(tmp_path):
    made = Guard(tmp_path)
    yield made
    made.armed = False


def test_the_guard_stops_commands_and_writes_outside_of_the_folder(guard, tmp_path):
    outside = Path(__file__).parent / "outside.txt"
    for action in (lambda: os.system("true"), lambda: outside.write_text("x"), outside.mkdir):
        guard.armed = True
        with pytest.raises(Breach):
            action()
    assert not outside.exists()
    guard.armed = True
    (tmp_path / "inside.txt").write_text("x")


@pytest.mark.parametrize("error", [EngineError(""), EngineError("no"), ValueError("x" * 9000)])
def test_messages_that_help_nobody_count_as_failures(error):
    with pytest.raises(AssertionError):
        check_message(error)
