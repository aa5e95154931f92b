"""A classroom: thirty people press the same button at once, and the engine computes once."""

from __future__ import annotations

import threading

from engine.store import Store
from engine.store.desk import Desk
from engine.store.people import Person, Settings

PEOPLE = 30


def test_thirty_people_who_press_the_same_button_get_one_computation_and_thirty_answers(service, gate, tmp_path):
    trace, rows, together = tmp_path / "trace", {}, threading.Barrier(PEOPLE)
    request = {"steps": [["count", {"n": 1, "trace": str(trace), "gate": str(gate)}, []], ["join", {"again": 30}, [0]]]}

    def press(name):
        store = Store(service.store.root, database_url=service.store.database_url)
        desk = Desk(store, Person(name, name, "member"), Settings())
        together.wait()
        rows[name] = desk.submit("run", request)
        store.database.close()

    pressing = [threading.Thread(target=press, args=(f"person-{number}",)) for number in range(PEOPLE)]
    for thread in pressing:
        thread.start()
    for thread in pressing:
        thread.join()
    service.until(trace.exists, what="the start of the computation")
    gate.touch()
    answers = {name: service.ended(row) for name, row in rows.items()}
    assert len(answers) == PEOPLE
    assert {(row.state, row.error) for row in answers.values()} == {("finished", "")}
    assert all(row.person == name for name, row in answers.items())
    (result,) = {row.result for row in answers.values()}
    assert (service.store.find(result) / "text").read_text() == "counted"
    assert len(trace.read_text().splitlines()) == 1
