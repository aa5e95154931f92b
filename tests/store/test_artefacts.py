"""Artefacts: whole or absent, whatever happens; digests, trash and garbage collection."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from engine.errors import StoreError
from engine.store import Store, Usage, artefacts, collect, files, step_key, usage_of
from engine.store.files import Checker

ROOT = Path(__file__).parents[2]
HOUR_AGO = -7200


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "store", database_url=f"sqlite:///{tmp_path / 'store' / 'runs.sqlite'}")
    made.database.engine()  # the table is there before the artefacts, as it is whenever a run makes them
    return made


@pytest.fixture
def forgetful():
    """As if every artefact were read by a process that has not seen it before."""

    def forget():
        artefacts._checker = Checker()

    yield forget
    forget()


def make(store, name="a", text="hello", **options):
    key = step_key(name, 1, {}, {})
    with store.create(key, step=name, **options) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "text").write_text(text)
    return key


def python(code: str, *arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_an_artefact_is_found_and_described(store):
    key = make(store, label="An example")
    folder = store.find(key)
    assert folder == store.root / "artefacts" / key[:2] / key
    assert (folder / "inner" / "text").read_text() == "hello"
    found = store.describe(key)
    assert (found.step, found.label, found.size, list(found.files)) == ("a", "An example", 5, ["inner/text"])
    assert store.find(step_key("b", 1, {}, {})) is None
    assert store.sizes()["artefacts"] > 5


def test_keys_depend_on_everything_and_on_no_order():
    base = step_key("a", 1, {"x": 1, "y": [1, 2]}, {"in": "k"}, "cpu")
    assert base == step_key("a", 1, {"y": [1, 2], "x": 1}, {"in": "k"}, "cpu")
    others = [
        step_key("b", 1, {"x": 1, "y": [1, 2]}, {"in": "k"}, "cpu"),
        step_key("a", 2, {"x": 1, "y": [1, 2]}, {"in": "k"}, "cpu"),
        step_key("a", 1, {"x": 1, "y": [2, 1]}, {"in": "k"}, "cpu"),
        step_key("a", 1, {"x": 1, "y": [1, 2]}, {"in": "l"}, "cpu"),
        step_key("a", 1, {"x": 1, "y": [1, 2]}, {"in": "k"}, "cuda"),
    ]
    assert len({base, *others}) == 6
    with pytest.raises(ValueError, match="not JSON compliant"):
        step_key("a", 1, {"x": float("nan")}, {})


def test_a_failing_writer_leaves_nothing(store):
    key = step_key("a", 1, {}, {})

    def fail():
        with store.create(key, step="a") as folder:
            (folder / "half").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert store.find(key) is None
    assert not list((store.root / "incoming").iterdir())
    assert not (store.root / "artefacts").exists()


@pytest.mark.processes
def test_a_killed_writer_leaves_nothing_among_the_artefacts(store):
    code = """
        import os, signal, sys
        from engine.store import Store, step_key
        with Store(sys.argv[1]).create(step_key("a", 1, {}, {}), step="a") as folder:
            (folder / "half").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
    """
    python(code, str(store.root)).communicate()
    assert not (store.root / "artefacts").exists()
    assert len(list((store.root / "incoming").iterdir())) == 1
    store.empty_trash()
    assert not list((store.root / "incoming").iterdir())


def test_the_folder_of_a_living_writer_is_left_alone(store):
    key = step_key("a", 1, {}, {})
    with store.create(key, step="a") as folder:
        store.empty_trash(0)
        assert folder.is_dir()
    assert store.find(key)


def test_the_second_writer_loses_silently(store):
    key = step_key("a", 1, {}, {})
    with store.create(key, step="a") as first:
        (first / "text").write_text("slow")
        with store.create(key, step="a") as second:
            (second / "text").write_text("fast")
    assert (store.find(key) / "text").read_text() == "fast"
    assert not list((store.root / "incoming").iterdir())


@pytest.mark.parametrize("text", ["hell", "jello"])
def test_a_damaged_artefact_counts_as_absent(store, caplog, text):
    key = make(store)
    (store.find(key, checksums=False) / "inner" / "text").write_text(text)
    assert store.find(key) is None
    assert "is damaged" in caplog.text
    assert len(list((store.root / "damaged").iterdir())) == 1
    make(store)
    assert store.find(key)


def flip(path):
    """Flip a bit in the middle of a file."""
    flipped = bytearray(path.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    path.write_bytes(flipped)


@pytest.mark.parametrize("size", [10, 2**20])
@pytest.mark.parametrize("known", [True, False])
def test_a_page_notices_a_file_that_was_modified(store, forgetful, size, known):
    """In a process that has read the artefact before, and in one that has not."""
    key = make(store, text="x" * size)
    folder = store.find(key, checksums=False)
    if not known:
        forgetful()
    flip(folder / "inner" / "text")
    assert store.find(key, checksums=False) is None


def test_a_page_notices_a_bit_that_rots(store, forgetful):
    """The file is as long as it was, and of the same time."""
    key = make(store, text="x" * 2**20)
    text = store.find(key, checksums=False) / "inner" / "text"
    before = text.stat().st_mtime_ns
    flip(text)
    os.utime(text, ns=(before, before))
    forgetful()
    assert store.find(key, checksums=False) is None


def test_a_file_is_read_once_for_each_modification_time(store, forgetful, monkeypatch):
    monkeypatch.setattr(files, "LARGE", 2**20)
    small, large = make(store, "small", text="x" * 2**20), make(store, "large", text="x" * (2**20 + 1))
    forgetful()
    read, original = [], files.sha256_of
    monkeypatch.setattr(files, "sha256_of", lambda path: read.append(path) or original(path))
    for _ in range(3):
        assert store.find(small, checksums=False)
        assert store.find(large, checksums=False)
    assert len(read) == 1  # the large file is as it was sealed
    assert store.find(large)
    assert store.find(large)
    assert len(read) == 2
    os.utime(store.folder_of(large) / "inner" / "text", ns=(1, 1))
    assert store.find(large, checksums=False)
    assert store.find(large)
    assert len(read) == 3


def test_what_is_deleted_is_gone_for_good(store, monkeypatch):
    key = make(store)
    assert store.delete(key)
    assert store.find(key) is None
    assert store.sizes()["trash"] == 0
    assert not store.delete(key)
    make(store)
    monkeypatch.setattr(artefacts, "remove", lambda folder: 0)  # the process ends in the middle
    assert store.delete(key)
    assert store.find(key) is None
    monkeypatch.undo()
    assert store.empty_trash(days=1) == 0
    assert store.empty_trash(days=0) > 0
    assert store.sizes()["trash"] == 0


def test_names_that_are_no_keys_are_refused(store):
    with pytest.raises(StoreError, match="is no artefact key"):
        store.find("../../etc/passwd")


def test_links_are_refused(store):
    key = step_key("a", 1, {}, {})

    def link():
        with store.create(key, step="a") as folder:
            (folder / "link").symlink_to("/etc/hostname")

    with pytest.raises(StoreError, match="link is something else"):
        link()


def test_digests_are_remembered_until_the_file_changes(store, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("one")
    os.utime(file, (time.time() + HOUR_AGO,) * 2)
    first = store.digest_file(file)
    calls = []
    original = artefacts.DigestCache
    monkeypatch.setattr("engine.store.digests.sha256_of", lambda path: calls.append(path) or "fresh")
    assert original(store.database).digest(file) == first
    assert calls == []
    file.write_text("two")
    assert store.digest_file(file) == "fresh"
    assert store.digest_file(file) == "fresh"
    assert len(calls) == 2  # changed just now: not remembered yet
    with pytest.raises(StoreError, match="cannot be read"):
        store.digest_file(tmp_path / "nothing")


def test_garbage_collection_follows_references(store):
    nested, loose = make(store, "nested"), make(store, "loose")
    kept = make(store, "kept", uses=[nested])
    run = store.runs.submit("run", {})
    store.runs.set_step_keys(run.id, [kept])
    assert collect(store).artefacts == 0  # all are young: their runs may not have recorded them yet
    assert collect(store, grace=0, dry=True).artefacts == 1
    assert store.find(loose)
    assert collect(store, grace=0).artefacts == 1
    assert [key for key in (kept, nested, loose) if store.find(key)] == [kept, nested]
    store.runs.request_cancel(run.id)
    store.runs.delete(run.id)
    assert collect(store, days=1, grace=0).runs == 0
    gone = collect(store, days=0, grace=0)
    assert (gone.runs, gone.artefacts) == (1, 2)
    assert store.runs.find(run.id) is None


def test_a_store_travels_to_other_processes(store):
    copy = pickle.loads(pickle.dumps(store))
    assert (copy.root, copy.database_url) == (store.root, store.database_url)


def test_the_environment_names_the_store(tmp_path, monkeypatch):
    monkeypatch.setenv("MERGELENS_STORE", str(tmp_path / "elsewhere"))
    monkeypatch.delenv("MERGELENS_DATABASE_URL", raising=False)
    assert Store().root == tmp_path / "elsewhere"
    assert Store().database_url.endswith("elsewhere/runs.sqlite")


def test_an_unusable_folder_is_explained(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be made"):
        Store(tmp_path / "file" / "store", database_url="sqlite://").runs.list()


@pytest.mark.processes
def test_pages_bring_in_nothing_heavy():
    code = """
        import sys, time
        began = time.perf_counter()
        import engine.store, engine.service.client
        heavy = {"torch", "transformers", "dask", "distributed", "umap", "open_clip", "pandas", "numpy", "sklearn"}
        print(",".join(sorted(heavy & set(sys.modules))))
    """
    process = python(code)
    assert process.communicate()[0].strip() == ""
    assert process.returncode == 0


def test_a_collection_says_what_it_would_free_and_frees_just_that(store):
    for name in ("kept", "gone"):
        with store.create(step_key(name, 1, {}, {}), step=name) as folder:
            (folder / "file").write_bytes(b"x" * 1000)
    run = store.runs.submit("run", {}, owner="test")
    store.runs.set_step_keys(run.id, [step_key("kept", 1, {}, {})])
    pictures = store.root / "thumbnails"
    pictures.mkdir()
    for name, days in (("old", 40), ("new", 1)):
        (pictures / f"{name}.npy").write_bytes(b"p" * 500)
        os.utime(pictures / f"{name}.npy", (time.time() - days * 86_400,) * 2)
    preview = collect(store, grace=0, dry=True)
    assert (preview.artefacts, preview.thumbnails, preview.thumbnail_bytes) == (1, 1, 500)
    assert list(preview.by_step) == ["gone"]
    assert store.sizes()["thumbnails"] == 1000
    done = collect(store, grace=0)
    assert (done.freed, done.by_step) == (preview.freed, preview.by_step)
    assert (store.find(step_key("kept", 1, {}, {})) is None, store.find(step_key("gone", 1, {}, {})) is None) == (
        False,
        True,
    )
    assert [path.name for path in pictures.iterdir()] == ["new.npy"]
    assert collect(store, grace=0, dry=True).freed == 0
    assert "0.0 MB would be freed" in str(collect(store, grace=0, dry=True))


def test_a_preview_counts_what_goes_with_runs_that_would_be_forgotten(store):
    key = step_key("only", 1, {}, {})
    with store.create(key, step="only") as folder:
        (folder / "file").write_bytes(b"x" * 1000)
    run = store.runs.submit("run", {}, name="Old one", owner="test")
    store.runs.set_step_keys(run.id, [key])
    store.runs.finish(run.id, key)
    store.runs.delete(run.id)
    assert collect(store, grace=0, dry=True).artefacts == 0  # it can still be brought back
    preview = collect(store, grace=0, days=0, dry=True)
    assert (preview.runs, preview.artefacts, preview.names) == (1, 1, ["Old one"])
    assert store.runs.undelete(run.id).deleted is None
    store.runs.delete(run.id)
    collect(store, grace=0, days=0)
    assert store.find(key) is None
    assert store.runs.find(run.id) is None


def test_what_a_run_takes_alone_and_with_others(store):
    keys = [step_key(name, 1, {}, {}) for name in ("shared", "own")]
    for key in keys:
        with store.create(key, step="s") as folder:
            (folder / "file").write_bytes(b"x" * 1000)
    one, two = (store.runs.submit("run", {}, owner="test") for _ in range(2))
    store.runs.set_step_keys(one.id, keys)
    store.runs.set_step_keys(two.id, keys[:1])
    assert usage_of(store, store.runs.get(one.id)) == Usage(total=2000, own=1000)
    assert usage_of(store, store.runs.get(two.id)) == Usage(total=1000, own=0)
