"""Serves the store of the environment with toy steps; a process of its own in the tests."""

import json
import os
import sys
from pathlib import Path
from pkgutil import resolve_name

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

from toy_steps import planner

from engine.service import main
from engine.store import Store

if __name__ == "__main__":
    idle = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    calm = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    for place, value in json.loads(os.environ.get("TOY_SETTINGS", "{}")).items():
        owner, _, constant = place.rpartition(".")
        setattr(resolve_name(owner), constant, value)
    main.code_version = lambda: os.environ.get("TOY_VERSION", "toy")
    sys.exit(main.serve(Store(), planner=planner, idle_minutes=idle, calm=calm))
