"""A page's process on a host of its own: asks for the engine and all runs until it is ended, and says what fails."""

import sys
import time
import traceback

from engine.service.client import ensure_service
from engine.store import Store

if __name__ == "__main__":
    store, looks = Store(), 0
    while True:
        try:
            state = ensure_service(store).state
            rows = {row.id: row.state for row in store.runs.list()}
            looks += 1
            print("look", looks, state, sorted(rows.values()), flush=True)
        except BaseException:
            print("broken", traceback.format_exc(), file=sys.stdout, flush=True)
        time.sleep(0.5)
