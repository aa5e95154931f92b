"""A part of the fuzzing with every run of the tests: seeded, so that the same cases are run everywhere."""

import os
import re
from pathlib import Path

import pytest

from engine.errors import EngineError
from tests.fuzz.__main__ import Fuzzer
from tests.fuzz.targets import check_message
from tests.fuzz.worker import Breach, Guard

CASES = 500
PATHS = re.compile(r"[0-9a-f]{6,}")  # temporary names and addresses


@pytest.fixture(scope="module")
def fuzzer():
    made = Fuzzer()
    yield made
    made.worker.stop()


def test_500_spoiled_files_are_read_or_refused_with_a_reason(fuzzer):
    told = []
    fuzzer.say = told.append
    found = fuzzer.run(fuzzer.cases(CASES))
    assert not found["failures"], "\n".join(told)
    refused = sum(count for name, count in found["counts"].items() if name.endswith("refused"))
    assert len(fuzzer.worker.targets) >= 10
    assert refused > CASES / 4, "hardly anything was spoiled"


def test_a_case_is_the_same_every_time(fuzzer):
    cases = [case for case in fuzzer.cases(60, seed=1000) if not case.startswith("artefact")]
    first, again = ([PATHS.sub("", str(fuzzer.outcome(case))) for case in cases] for _ in range(2))
    assert first == again


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
