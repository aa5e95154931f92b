"""Devices as the heartbeat reports them."""

import subprocess

import pytest

from engine.service import client, devices
from engine.service.devices import Device, describe_devices, read_devices
from engine.store import Store
from engine.store.owners import this_process

ANSWER = """0, GPU-aaa, NVIDIA H100 80GB HBM3, 1024, 81559, 9.0
1, GPU-bbb, Tesla V100, 10, 16384, 7.0
"""


def test_the_processor_is_there_with_its_memory():
    (found,) = [device for device in read_devices(describe_devices(())) if device.name == "cpu"]
    assert not found.accelerator
    assert 0 < found.own < found.total
    assert 0 < found.used <= found.total
    assert found.dtype == "float32"


def test_accelerators_are_named_with_dtype_and_memory(monkeypatch):
    monkeypatch.setattr(devices.shutil, "which", lambda name: "/bin/nvidia-smi")
    monkeypatch.setattr(
        devices.subprocess, "run", lambda command, **options: subprocess.CompletedProcess(command, 0, ANSWER, "")
    )
    found = [device for device in read_devices(describe_devices(("0", "GPU-bbb", "MIG-ccc"))) if device.accelerator]
    assert [(device.name, device.dtype) for device in found] == [
        ("cuda:0", "bfloat16"),
        ("cuda:1", "float16"),
        ("cuda:2", "bfloat16"),
    ]
    assert (found[0].title, found[0].used, found[0].total) == ("NVIDIA H100 80GB HBM3", 2**30, 81559 * 2**20)
    assert found[2].total == 0


@pytest.mark.parametrize("fails", [OSError("gone"), subprocess.TimeoutExpired("nvidia-smi", 1)])
def test_a_driver_that_does_not_answer_costs_only_the_memory(monkeypatch, fails):
    def run(command, **options):
        raise fails

    monkeypatch.setattr(devices.shutil, "which", lambda name: "/bin/nvidia-smi")
    monkeypatch.setattr(devices.subprocess, "run", run)
    found = read_devices(describe_devices(("0",)))[-1]
    assert (found.name, found.total) == ("cuda:0", 0)


def test_a_heartbeat_is_read_whatever_version_wrote_it(tmp_path, monkeypatch):
    assert read_devices(["cuda:0"]) == (Device("cuda:0", "cuda:0", ""),)
    assert read_devices([{"name": "x"}, {"name": "x", "title": "y", "dtype": "z", "new": 1}, 5]) == ()
    store, owner = Store(tmp_path), this_process("service")
    monkeypatch.setattr(client, "code_version", lambda: "now")
    store.lease.acquire(owner, "now")
    store.lease.renew(owner, state="ready", workers=2, devices=describe_devices(()))
    state = client.service_state(store)
    assert state.message == "The engine is ready: 2 workers."
    store.lease.renew(owner, devices=[*describe_devices(()), {"name": "cuda:0", "title": "GPU", "dtype": "bfloat16"}])
    assert client.service_state(store).message == "The engine is ready: 2 workers, 1 accelerator."
