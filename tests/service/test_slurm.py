"""The script that queues workers as jobs of SLURM: what it asks for is what dask and the documents know."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from distributed import Scheduler, Security
from distributed.cli.dask_worker import main as dask_worker

from engine.service.cluster import QUICK, SETTINGS

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "cluster" / "slurm.py"


@pytest.fixture(scope="module")
def script():
    """The script as a module; importing it finds every name of ours that it uses."""
    spec = importlib.util.spec_from_file_location("slurm_script", SCRIPT)
    made = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(made)
    sys.path[:] = before
    return made


@pytest.mark.parametrize(("words", "resource"), [([], "CPU"), (["--gpu"], "GPU")])
def test_a_job_is_one_worker_that_takes_one_step(script, words, resource):
    asked = script.options(script.arguments(words), Security())
    assert (asked["cores"], asked["processes"]) == (1, 1)
    assert asked["job_extra_directives"] == (["--gres=gpu:1"] if words else [])
    read = dask_worker.make_context(
        "worker", ["tls://scheduler:8786", "--memory-limit", "9GB", *asked["worker_extra_args"]]
    )
    assert read.params["resources"] == f"{resource}=1"
    assert read.params["memory_limit"] == "0"
    assert set(asked["scheduler_options"]) <= set(inspect.signature(Scheduler.__init__).parameters)


def test_a_job_reads_the_environment_wherever_it_lies(script, tmp_path, monkeypatch):
    place = tmp_path / "it's here"
    place.write_text("MERGELENS_STORE='/some where'\n")
    monkeypatch.setenv("DASK_CONFIG", "/dask's")
    lines = script.options(script.arguments(["--environment", str(place)]), Security())["job_script_prologue"]
    child = "import os; print(os.environ['MERGELENS_STORE'])"
    say = f'printf "%s|" "$MERGELENS_STORE" "$DASK_CONFIG" "$PYTHONPATH"; python3 -c "{child}"'
    done = subprocess.run(["bash", "-c", "\n".join([*lines, say])], capture_output=True, text=True, check=True)
    assert done.stdout == f"/some where|/dask's|{ROOT}|/some where\n"


def test_the_documents_call_it_as_it_can_be_called(script):
    text = (ROOT / "docs" / "deploy.md").read_text("utf-8")
    [line] = re.findall(r"^ {4}.*deploy/cluster/slurm\.py (.*)$", text, re.MULTILINE)
    given = script.arguments(shlex.split(line))
    assert (given.jobs, given.show) == (8, True)


@pytest.mark.processes
def test_without_certificates_nothing_is_queued(tmp_path):
    environment = {**os.environ, "DASK_CONFIG": str(tmp_path)}
    done = subprocess.run([sys.executable, str(SCRIPT)], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "No certificates" in done.stderr


def test_workers_of_every_kind_keep_the_memory_of_a_batch(script, tmp_path):
    """Those that the service starts, those of SLURM's jobs, and those of a unit of systemd."""
    (tmp_path / "environment").write_text("A=1\n")
    lines = script.options(script.arguments(["--environment", str(tmp_path / "environment")]), Security())
    unit = (ROOT / "deploy" / "cluster" / "mergelens-worker@.service").read_text()
    own = SETTINGS["distributed.nanny.pre-spawn-environ"]
    assert QUICK
    for name, value in QUICK.items():
        assert own[name] == value
        assert f"export {name}={value}" in lines["job_script_prologue"]
        assert f"Environment={name}={value}\n" in unit
