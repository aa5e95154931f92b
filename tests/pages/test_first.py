"""The first visit of a page is alone, and nobody waits after it."""

import threading

import pytest

from pages.shared import first
from pages.shared.first import first_alone


@pytest.fixture(autouse=True)
def unvisited(monkeypatch):
    monkeypatch.setattr(first, "_seen", set())
    monkeypatch.setattr(first, "_gates", {})


def visit(page, inside, arrived, leave):
    with first_alone(page):
        inside.append(page)
        arrived.set()
        assert leave.wait(20)


def test_others_wait_for_the_first_and_then_come_together():
    inside, arrived, leave, together = [], threading.Event(), threading.Event(), threading.Barrier(4)

    def follow():
        with first_alone("lab"):
            together.wait(20)  # broken where they come one by one
            inside.append("later")

    threads = [threading.Thread(target=visit, args=("lab", inside, arrived, leave))]
    threads[0].start()
    assert arrived.wait(20)
    threads += [threading.Thread(target=follow) for _ in range(4)]
    for thread in threads[1:]:
        thread.start()
    assert together.n_waiting == 0
    leave.set()
    for thread in threads:
        thread.join(20)
    assert inside == ["lab", *4 * ["later"]]


def test_another_page_is_not_waited_for():
    arrived, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=visit, args=("lab", [], arrived, leave))
    thread.start()
    assert arrived.wait(20)
    with first_alone("runs"):
        assert thread.is_alive()
    leave.set()
    thread.join(20)


def test_a_first_visit_that_fails_or_takes_too_long_keeps_nobody(monkeypatch):
    with pytest.raises(ZeroDivisionError), first_alone("lab"):
        raise ZeroDivisionError
    with first_alone("lab"), first_alone("lab"):
        pass
    monkeypatch.setattr(first, "PATIENCE", 0.05)
    arrived, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=visit, args=("runs", [], arrived, leave))
    thread.start()
    assert arrived.wait(20)
    with first_alone("runs"):
        assert thread.is_alive()
    leave.set()
    thread.join(20)
