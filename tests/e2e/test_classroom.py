"""A classroom: everybody opens the lecturer's link and presses the same button of the same step."""

from __future__ import annotations

import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlencode

import pytest

from engine.catalog import resolve
from engine.pipeline.views.disentanglement import DISENTANGLEMENT
from engine.recipe import Recipe, parse_recipe
from engine.store import Store
from engine.store.run import Run
from tests.e2e.sessions import Session
from tests.made_run import made_report, write_run
from tests.tiny_zoo import make_zoo

pytestmark = pytest.mark.slow

PEOPLE = 15  # 30 get theirs too, and take twice as long to arrive
PATIENCE = 120.0  # seconds that an answer is waited for
LESSON, STEP, OWN = "straight-lines", 5, "A run of the class"
BUTTON = f"learn.figure.{LESSON}.{STEP}.compute"
ANSWER = "Inside the box"


def test_all_press_the_same_button_of_a_lesson_and_one_computation_answers_everybody(
    app_address, app_store, engine_probes, tmp_path
):
    store = Store(app_store, database_url=f"sqlite:///{app_store / 'runs.sqlite'}")
    tries, computed = asked_for(store), computations(engine_probes)
    recipe = on_a_small_zoo(store, tmp_path, split_seed=len(tries))  # a second try finds no answer of the first
    earlier = {*tries, asked_for_and_cancelled(store, recipe)}  # so that no page asks for it by itself
    link = urlencode({"lesson": LESSON, "step": STEP, "on": f"{recipe.zoo}: {OWN}"})
    with ExitStack() as stack:
        sessions = [stack.enter_context(Session(app_address, "learn", link)) for _ in range(PEOPLE)]
        assert not any(ANSWER in session.text for session in sessions)
        at_once([lambda session=session: session.click(BUTTON) for session in sessions])
        at_once([lambda session=session: until_answered(session) for session in sessions])
        assert len({answer_of(session) for session in sessions}) == 1
    rows = [row for name, row in asked_for(store).items() if name not in earlier]
    assert {row.state for row in rows} == {"finished"}
    (result,) = {row.result for row in rows}
    assert store.find(result) is not None
    assert len(rows) == PEOPLE, "every press is a row of its own, which ends by itself"
    assert computations(engine_probes) == computed + 1
    store.database.close()


def asked_for(store: Store) -> dict[str, Run]:
    """Return what was asked for of the button's kind, by its id."""
    return {row.id: row for row in store.runs.list(kinds=(DISENTANGLEMENT.name,), limit=1000)}


def on_a_small_zoo(store: Store, folder: Path, *, split_seed: int) -> Recipe:
    """Put a finished run of the lesson's kind on a small zoo into the store; returns its recipe."""
    zoo = make_zoo(folder / "zoo", experts=("digits", "signs"))
    store.zoos.add(zoo)
    asked = {"zoo": str(zoo), "merge": {"method": "task_arithmetic"}, "probe": {"split_seed": split_seed}}
    recipe = resolve(parse_recipe(asked))
    row = store.runs.submit("run", {"recipe": recipe.model_dump(mode="json")}, name=OWN, owner="test")
    store.runs.finish(row.id, str(write_run(folder / "run", made_report(recipe=recipe))))
    return recipe


def asked_for_and_cancelled(store: Store, recipe: Recipe) -> str:
    """Put down that somebody asked for the step's figure and cancelled it; returns the row's id."""
    request = DISENTANGLEMENT.ask(recipe, first="digits", second="signs").model_dump(mode="json")
    row = store.runs.submit(DISENTANGLEMENT.name, request, owner="test")
    store.runs.cancelled(row.id)
    return row.id


def computations(probes: str) -> float:
    """Return how often the engine has computed what the button asks for; an engine that nobody has started, never."""
    try:
        with urllib.request.urlopen(f"http://{probes}/metrics") as answer:
            text = answer.read().decode()
    except urllib.error.URLError:
        return 0.0
    found = re.search(rf'^mergelens_step_seconds_count{{step="{DISENTANGLEMENT.name}"}} (\S+)$', text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def at_once(acts: list[Callable[[], object]]) -> None:
    """Carry out acts side by side; the first error of any is raised."""
    failed: list[BaseException] = []
    together = threading.Barrier(len(acts))

    def carry_out(act: Callable[[], object]) -> None:
        together.wait()
        try:
            act()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=carry_out, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def until_answered(session: Session) -> None:
    """Wait as a browser does, until the answer is drawn."""
    until = time.monotonic() + PATIENCE
    while ANSWER not in session.text:
        assert time.monotonic() < until, session.text
        assert not session.errors, session.errors
        session.rest(0.5)


def answer_of(session: Session) -> str:
    """Return the sentence that tells what was measured."""
    return next(line for line in session.text.splitlines() if ANSWER in line)
