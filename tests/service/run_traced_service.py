"""Serves the store of the environment with the pipeline's own steps, traced, on several workers."""

import os
import sys
from pathlib import Path

os.environ["DASK_DISTRIBUTED__WORKER__PRELOAD"] = "traced_steps"
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

from engine.service import cluster, main
from engine.store import Store

WORKERS = 2

if __name__ == "__main__":
    cluster.CPU_COUNT = WORKERS  # one worker a core: so many on any machine
    main.code_version = lambda: "traced"
    sys.exit(main.serve(Store()))
