"""Fixtures that several files of these tests share."""

import json
import sys
from typing import NamedTuple

import pytest
import yaml

from engine.__main__ import main
from engine.store import Store
from tests.fake_hub import FakeHub
from tests.made_checkpoints import clip, moved, visual_of
from tests.pipeline.described_files import CONFIG, TASKS, write_files
from tests.tiny_zoo import make_zoo, scattered


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    return scattered(make_zoo(tmp_path_factory.mktemp("zoo") / "tiny"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def base():
    return visual_of(clip())


@pytest.fixture(scope="module")
def tuned(base):
    """Two experts; the first keeps the base's projection."""
    return {"cars": moved(base, 1, keep=("visual.proj",)), "dtd": moved(base, 2, keep=("visual.proj",))}


class Called(NamedTuple):
    """A command's exit code, and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch, capsys):
    """Call a command as the command line does."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["mergelens", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        return Called(stopped.value.code or 0, *capsys.readouterr())

    return call


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and no hub that could fill it."""
    monkeypatch.setenv("MERGELENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    return tmp_path / "cache"


@pytest.fixture
def hub(cache, tmp_path, monkeypatch):
    """A hub with a base in open_clip's form, two experts in Hugging Face's, and images in parquet."""
    fake = FakeHub(tmp_path / "hub")
    monkeypatch.setenv("HF_ENDPOINT", fake.url)
    write_files(tmp_path / "hub" / "models", tmp_path / "hub" / "datasets")
    yield fake
    fake.close()


@pytest.fixture
def described(cache, tmp_path):
    """A description of a zoo that names the hub's files."""
    folder = tmp_path / "own descriptions"
    folder.mkdir()
    (folder / "tower.json").write_text(json.dumps(CONFIG))
    document = {
        "format": 1,
        "name": "pair",
        "title": "Two experts",
        "backbone": {"architecture": "tower.json", "weights": "hf:own/base", "quick_gelu": True},
        "experts": [{"name": name, "task": name, "weights": f"hf:own/expert_{name}"} for name in TASKS],
        "tasks": [{"name": n, "domain": "in", "dataset": n, "data": f"hf:own/{n}"} for n in TASKS],
    }
    path = folder / "pair.yaml"
    path.write_text(yaml.safe_dump(document))
    return path
