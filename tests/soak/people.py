"""Somebody who clicks, as a process: submits, cancels, deletes, labels and looks until it is ended or killed.

python -m tests.soak.people JOURNAL SEED NUMBER, with the store in the environment. Each line of the journal is a fact
that has to hold afterwards: a run that was accepted, a deletion that was asked for, an answer that nobody could use.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from random import Random
from typing import Any

from engine.errors import EngineError
from engine.recipe import parse_recipe
from engine.service.client import ensure_service
from engine.store import ENDED, Run, Store, collect, read_collected
from engine.store.desk import Desk
from engine.store.people import Person, Settings

PAUSE = (0.2, 2.0)  # seconds between two clicks
MOST = 5  # runs that a person may have at work and queued
GRACE = 20.0  # seconds in which nothing new is collected
METHODS = ("task_arithmetic", "ties", "breadcrumbs")
SCALINGS = (0.2, 0.3, 0.4, 0.6)
CALIBRATORS = ([], [{"method": "surgery", "params": {"rank": 2, "steps": 20}}])
ACTIONS = {
    "submit": 24,
    "sweep": 4,
    "cancel": 12,
    "delete": 12,
    "undelete": 3,
    "resume": 10,
    "label": 6,
    "look": 24,
    "clean": 2,
    "collect": 1,
}


class Clicker:
    """One person at one page."""

    def __init__(self, journal: Path, seed: str, number: int, zoo: str) -> None:
        self.store, self.zoo, self.name = Store(), zoo, f"person-{number}"
        self.rng, self.journal = Random(f"{seed}:{number}"), journal
        self.desk = Desk(self.store, Person(self.name, self.name, "admin"), Settings(runs=MOST))

    def click(self) -> None:
        """Do one thing, chosen by chance."""
        (action,) = self.rng.choices(list(ACTIONS), list(ACTIONS.values()))
        try:
            ensure_service(self.store)
            getattr(self, action)()
        except EngineError as error:
            self.note("refused", action=action, kind=type(error).__name__, text=str(error))
        except Exception as error:
            self.note("broken", action=action, kind=type(error).__name__, text=traceback.format_exc()[-3000:])
        else:
            self.note("did", action=action)

    def note(self, what: str, **values: Any) -> None:
        """Add a line to the journal; it is there when this process is killed next."""
        line = json.dumps({"what": what, "time": time.time(), "who": self.name, **values}) + "\n"
        file = os.open(self.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def recipe(self) -> dict[str, Any]:
        """Ask for one of some hundred recipes, so that people share what they compute."""
        method, scaling = self.rng.choice(METHODS), self.rng.choice(SCALINGS)
        document = {
            "zoo": self.zoo,
            "experts": ["alpha", *self.rng.choice((["beta"], ["gamma"], ["beta", "gamma"]))],
            "merge": {"method": method, "params": {"scaling": scaling}},
            "calibrators": self.rng.choice(CALIBRATORS),
            "seeds": [self.rng.choice((0, 1))],
        }
        return parse_recipe(document).model_dump(mode="json")

    def submit(self) -> None:
        row = self.desk.submit("run", {"recipe": self.recipe(), "projection": None}, name=f"of {self.name}")
        self.note("accepted", run=row.id)

    def sweep(self) -> None:
        recipe = self.recipe() | {"merge": {"method": "task_arithmetic", "params": {"scaling": 0.3}}}
        values = sorted(self.rng.sample([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 3))
        request = {"recipe": recipe, "settings": [{"place": "merge.params.scaling", "values": values}]}
        row = self.desk.submit("sweep", request, name=f"sweep of {self.name}")
        self.note("accepted", run=row.id)

    def clean(self) -> None:
        row = self.desk.submit("gc", {"asked": time.time(), "days": 0.0, "dry": True}, name="preview")
        self.note("accepted", run=row.id)

    def collect(self) -> None:
        """Purge what was deleted, with the artefacts that nobody refers to, while others are at work."""
        self.note("purges")
        collect(self.store, days=0.0, grace=GRACE)

    def cancel(self) -> None:
        if row := self.one(states=("queued", "running")):
            self.desk.cancel(row.id)
            self.note("cancelled", run=row.id)

    def delete(self) -> None:
        if row := self.one(states=ENDED):
            self.note("deletes", run=row.id)  # before it is: a killed person may have
            self.desk.delete(row.id)

    def undelete(self) -> None:
        if row := self.one(deleted=True):
            self.desk.undelete(row.id)

    def resume(self) -> None:
        if row := self.one(states=("cancelled", "failed")):
            self.desk.resume(row.id)

    def label(self) -> None:
        if row := self.one():
            self.desk.edit(row.id, notes=f"seen {self.rng.random():.3f}", tags=[self.name])

    def look(self) -> None:
        """Read what pages read."""
        for row in self.store.runs.list(limit=50):
            if row.state == "finished" and (folder := self.store.find(row.result, checksums=False)):
                if row.kind == "gc":
                    read_collected(folder)
                elif row.kind == "run":
                    json.loads((folder / "report.json").read_text())
                break
        if row := self.one():
            self.store.runs.logs.read(row.id)

    def one(self, **filters: Any) -> Run | None:
        """Choose one of this person's runs."""
        rows = self.store.runs.list(person=self.name, limit=30, **filters)
        return self.rng.choice(rows) if rows else None


def main() -> None:
    """Click until somebody ends this process."""
    journal, seed, number, zoo = sys.argv[1:]
    clicker = Clicker(Path(journal), seed, int(number), zoo)
    while True:
        clicker.click()
        time.sleep(clicker.rng.uniform(*PAUSE))


if __name__ == "__main__":
    main()
