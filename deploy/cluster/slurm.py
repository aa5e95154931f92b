"""A dask cluster whose workers are jobs of SLURM, for the engine to give its steps to; docs/deploy.md says how.

Runs until it is ended, and takes its jobs along. Needs dask-jobqueue, and certificates in dask's configuration.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dask
from distributed import Security

from engine.service.cluster import ENV_SCHEDULER, QUICK, SETTINGS

PROJECT = Path(__file__).resolve().parents[2]
LOOK = 30.0  # seconds between two looks at the jobs


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="jobs, one worker each")
    parser.add_argument("--partition", help="where they are queued (sbatch -p)")
    parser.add_argument("--account", help="who is charged (sbatch -A)")
    parser.add_argument("--walltime", default="08:00:00", help="of a job; longer than any step")
    parser.add_argument("--cpus", type=int, default=4, help="cores of a job")
    parser.add_argument("--memory", default="16GiB", help="of a job")
    parser.add_argument("--gpu", action="store_true", help="every job gets one GPU")
    parser.add_argument("--port", type=int, default=8786, help="of the scheduler, which runs here")
    parser.add_argument("--interface", help="network that scheduler and workers share, such as ib0")
    parser.add_argument("--scratch", default="/tmp", help="folder on a node's own disk")
    parser.add_argument("--logs", help="folder for the jobs' output")
    parser.add_argument("--environment", type=Path, default=Path("/etc/mergelens/environment"), help="read by jobs")
    parser.add_argument("--show", action="store_true", help="print a job's script and end")
    return parser.parse_args(words)


def options(given: argparse.Namespace, security: Security) -> dict[str, Any]:
    """Return what SLURMCluster is asked for: in each job one worker with one thread, that takes one step at a time."""
    configured = os.environ.get("DASK_CONFIG", "")
    return {
        "queue": given.partition,
        "account": given.account,
        "walltime": given.walltime,
        "cores": 1,  # of the worker, which takes as many steps at a time; a step uses all of the job's
        "processes": 1,
        "job_cpu": given.cpus,
        "memory": given.memory,
        "job_extra_directives": ["--gres=gpu:1"] if given.gpu else [],
        "worker_extra_args": [
            *("--memory-limit", "0"),  # checkpoints are memory-mapped; dask would count and kill them
            *("--resources", "GPU=1" if given.gpu else "CPU=1"),
            "--no-dashboard",
        ],
        "job_script_prologue": [
            *("set -a", f". {shlex.quote(str(given.environment))}", "set +a"),
            f"export PYTHONPATH={shlex.quote(str(PROJECT))}",
            f"export DASK_CONFIG={shlex.quote(configured)}",
            *(f"export {name}={value}" for name, value in QUICK.items()),
        ],
        "local_directory": given.scratch,
        "log_directory": given.logs,
        "interface": given.interface,
        "security": security,
        "scheduler_options": {"port": given.port, "dashboard_address": "127.0.0.1:0"},
    }


def main() -> None:
    """Start the scheduler, queue the jobs, and wait to be ended."""
    given = arguments()
    # What the engine sets for a scheduler of its own: it counts failures and places steps itself.
    dask.config.set({name: value for name, value in SETTINGS.items() if name.startswith("distributed.scheduler.")})
    security = Security(require_encryption=True)
    if not security.tls_ca_file:
        sys.exit("No certificates: let DASK_CONFIG name a folder with dask.yaml (deploy/cluster/dask.yaml).")
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError:
        sys.exit("dask-jobqueue is not installed: .venv/bin/pip install dask-jobqueue==0.9.0")
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with SLURMCluster(**options(given, security)) as cluster:
        if given.show:
            print(cluster.job_script())
            return
        cluster.scale(jobs=given.jobs)
        print(f"{ENV_SCHEDULER}={cluster.scheduler_address}", flush=True)
        while not ended.wait(LOOK):
            cluster.scale(jobs=given.jobs)  # queues others in place of those that have ended


if __name__ == "__main__":
    main()
