"""Folders that lie elsewhere on one machine than on another: what is translated, and what is not."""

import pickle
from pathlib import Path

import pytest

from engine.errors import StoreError
from engine.mounts import ENV, here, there
from engine.pipeline.sources import Sources
from engine.store import Store
from tests.tiny_zoo import make_zoo


@pytest.fixture
def mounted(monkeypatch):
    monkeypatch.setenv(ENV, "/srv/store=/mnt/a:/srv=/mnt/b/:/data=/")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("/srv/store", "/mnt/a"),
        ("/srv/store/artefacts/ab", "/mnt/a/artefacts/ab"),
        ("/srv/stores", "/mnt/b/stores"),
        ("/data/x", "/x"),
        ("/srvx", "/srvx"),
        ("mini8", "mini8"),
        ("", ""),
    ],
)
def test_the_longest_folder_counts_and_the_way_back_is_the_reverse(mounted, theirs, ours):
    assert here(theirs) == ours
    assert there({"places": [ours, 1, None]}) == {"places": [theirs, 1, None]} or theirs == "/srvx"
    assert here(Path(theirs)) == Path(ours)


def test_nothing_is_translated_without_the_setting(monkeypatch):
    monkeypatch.delenv(ENV, raising=False)
    value = {"a": ["/srv/store"]}
    assert here(value) is value
    assert there(value) is value


@pytest.mark.parametrize("text", ["/srv", "srv=/mnt", "/srv=mnt", "=", "/a=/b:nonsense"])
def test_a_setting_that_cannot_be_read_is_named(monkeypatch, text):
    monkeypatch.setenv(ENV, text)
    with pytest.raises(StoreError, match=r"expected THEIRS=OURS"):
        here("/srv")


def test_a_store_travels_to_where_the_receiver_sees_it(tmp_path, monkeypatch):
    sent = Store(tmp_path / "theirs", database_url=None)
    travelling = pickle.dumps(sent)
    monkeypatch.setenv(ENV, f"{tmp_path / 'theirs'}={tmp_path / 'ours'}")
    received = pickle.loads(travelling)
    assert received.root == tmp_path / "ours"
    assert received.database_url == f"sqlite:///{tmp_path / 'ours' / 'runs.sqlite'}"


def test_known_zoos_are_recorded_under_the_engines_paths(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "ours").symlink_to(tmp_path / "real")
    made = make_zoo(tmp_path / "real" / "zoos" / "one", images=2)
    monkeypatch.setenv(ENV, f"/theirs={tmp_path / 'real'}")
    Store(tmp_path / "real").zoos.add(made)
    assert Store(tmp_path / "real").zoos.list() == [made]
    assert Sources(zoo="/theirs/zoos/one").open().folder == made
    [record] = (tmp_path / "real" / "known-zoos").glob("*.json")
    assert '"/theirs/zoos/one"' in record.read_text()
