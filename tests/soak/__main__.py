"""People click, runs compute, and everything that can go wrong does; afterwards nothing may be lost.

python -m tests.soak --minutes 60 --seed 0      # the run table in SQLite
python -m tests.soak --minutes 60 --postgresql  # in PostgreSQL, whose server restarts now and then
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random

import psutil

from engine.service.client import ensure_service, stop_service
from engine.store import ACTIVE, Store
from tests import database_server
from tests.cut_wire import CutWire
from tests.full_disk import is_mounted, unmount
from tests.soak.afterwards import Findings, look
from tests.soak.faults import Faults, Pages, People, is_service, is_worker, processes_of
from tests.soak.network import own_network
from tests.tiny_zoo import make_zoo

DISK = 1500  # megabytes of the store's disk
CALM_SHARE = 0.4  # of the time, at the end, nothing goes wrong and memory is watched
ENDING = 600.0  # seconds in which all runs have to end afterwards
LOOK = 5.0  # seconds between two looks at memory and files
MOST_MEMORY, MOST_FILES = 1.15, 8  # growth that counts as flat: ratio, and open files

Sample = dict[tuple[int, str], tuple[int, int]]  # process and what it is → resident bytes, open files


def soak(minutes: float, seed: int, *, people: int = 3, every: float = 4.0, postgresql: bool = False) -> Findings:
    """Let people click and things go wrong for so long.

    Args:
        minutes: how long.
        seed: of all that is left to chance.
        people: how many click.
        every: seconds between two faults, on average.
        postgresql: keep the run table there.
    """
    rng = Random(seed)
    with ExitStack() as stack:
        network = stack.enter_context(own_network())
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        server = stack.enter_context(database_server.server()) if postgresql else None
        url = stack.enter_context(server.database()) if server else f"sqlite:///{place / 'store' / 'runs.sqlite'}"
        wire = stack.enter_context(CutWire(url, heard=True)) if server else None
        url = wire.url if wire else url
        disk = sys.platform == "linux" and is_mounted(place / "store", DISK)
        if disk:
            stack.callback(unmount, place / "store")
        store, journal = Store(place / "store", database_url=url), place / "journal"
        stack.callback(_end_all, store)
        crowd = People(store, journal, make_zoo(place / "zoo"), seed, people)
        stack.callback(crowd.close)
        pages = Pages(store, journal.with_suffix(".pages"))
        stack.callback(pages.close)
        faults = Faults(store, crowd, pages, rng, disk=disk, network=network, server=server, wire=wire)
        _stir(faults, crowd, pages, rng, seconds=60 * minutes * (1 - CALM_SHARE), every=every)
        samples = _watch(store, crowd, pages, seconds=60 * minutes * CALM_SHARE)
        unready = pages.answer()
        crowd.close()
        waited = _await_ends(store)
        stop_service(store)
        found = look(store, journal, again=max(3, min(24, int(minutes))), aside=place / "aside")
        found.facts |= {"seconds until all had ended": round(waited, 1), "kills": faults.kills, **faults.counts}
        found.faults += [f"the pages are not ready afterwards: {unready}"] if unready else []
        _flat(found, samples, long=minutes >= 10)
        found.facts["size of the store, MB"] = round(sum(store.sizes().values()) / 1e6)
        store.database.close()
        return found


def _stir(faults: Faults, crowd: People, pages: Pages, rng: Random, *, seconds: float, every: float) -> None:
    until, due = time.monotonic() + seconds, time.monotonic() + 10
    while time.monotonic() < until:
        crowd.look_after()
        pages.look_after()
        faults.pass_by()
        if time.monotonic() >= due:
            faults.happen()
            due = time.monotonic() + rng.expovariate(1 / every)
        time.sleep(0.1)
    faults.pass_by(now=True)


def _watch(store: Store, crowd: People, pages: Pages, *, seconds: float) -> list[Sample]:
    """Look at what the processes take while nothing goes wrong."""
    samples, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        crowd.look_after()
        pages.look_after()
        sample: Sample = {(process.pid, "people"): _facts_of(process) for process in crowd.processes()}
        sample[pages.process().pid, "pages"] = _facts_of(pages.process())
        for process in processes_of(store):
            kind = "workers" if is_worker(process) else "service" if is_service(process) else "helpers"
            sample[process.pid, kind] = _facts_of(process)
        samples.append(sample)
        time.sleep(LOOK)
    return samples


def _facts_of(process: psutil.Process) -> tuple[int, int]:
    """Return resident bytes and open files; zeros for one that has ended."""
    try:
        return process.memory_info().rss, process.num_fds()
    except psutil.Error:
        return 0, 0


def _flat(found: Findings, samples: list[Sample], *, long: bool) -> None:
    """Compare what processes that lived through the second half of the calm took in its third and last quarter."""
    quarter = len(samples) // 4
    third, last = samples[2 * quarter : 3 * quarter], samples[3 * quarter :]
    lived = set.intersection(*map(set, third + last)) if quarter else set()
    for place, (name, scale) in enumerate((("memory, MB", 1e6), ("open files", 1))):
        for kind in sorted({kind for _, kind in lived}):
            early, late = (
                sum(statistics.median(sample[one][place] for sample in part) for one in lived if one[1] == kind) / scale
                for part in (third, last)
            )
            found.facts[f"{name}, {kind}"] = [round(early), round(late)]
            if long and late > (early * MOST_MEMORY if place == 0 else early + MOST_FILES):
                found.faults.append(f"{name} of {kind} grew from {early:.0f} to {late:.0f}")
    if long and not lived:
        found.faults.append("no process lived through the calm")


def _await_ends(store: Store) -> float:
    """Wait until no run is active any more; the service is started as a page would."""
    began = time.monotonic()
    while store.runs.list(states=ACTIVE, limit=1) and time.monotonic() - began < ENDING:
        ensure_service(store)
        time.sleep(0.5)
    return time.monotonic() - began


def _end_all(store: Store) -> None:
    for process in processes_of(store):
        if process.is_running():
            process.kill()


def main() -> int:
    """Soak, print what was found, and tell by the exit status whether all is well."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long")
    parser.add_argument("--seed", type=int, default=0, help="of all that is left to chance")
    parser.add_argument("--people", type=int, default=3, help="how many click")
    parser.add_argument("--every", type=float, default=4.0, help="seconds between two faults, on average")
    parser.add_argument("--postgresql", action="store_true", help="keep the run table in a PostgreSQL server")
    given = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "MERGELENS_THREADS"):
        os.environ.setdefault(name, "1")
    began = time.monotonic()
    found = soak(given.minutes, given.seed, people=given.people, every=given.every, postgresql=given.postgresql)
    print(json.dumps(found.facts, indent=1, ensure_ascii=False))
    print("\n".join(found.faults) or "Nothing was lost, nothing is wrong, every run ended or said why.")
    print(f"{time.monotonic() - began:.0f} s in all")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
