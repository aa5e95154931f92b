"""Manifests as pages read them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.errors import ZooError
from engine.manifest import known_zoos, read_manifest
from pages.shared import zoos
from tests.tiny_zoo import make_zoo


def test_manifests_of_all_known_zoos_are_read_once(monkeypatch):
    read = []

    def reading(folder: Path):
        read.append(folder)
        return read_manifest(folder)

    monkeypatch.setattr(zoos, "read_manifest", reading)
    zoos._manifest.clear()
    zoos._found.clear()
    names = [zoo.name for zoo in known_zoos()]
    for name in (*names, *names):
        zoos.zoo_manifest(name)
    assert len(read) == len(set(read)) == len(names)
    zoos._manifest.clear()


def test_a_zoo_is_found_again_by_one_look_and_anew_when_its_file_is_another_one(store, tmp_path, monkeypatch):
    folder = make_zoo(tmp_path / "one", images=2)
    assert zoos.zoo_folder(str(folder)) == folder
    located = []
    monkeypatch.setattr(zoos, "locate_zoo", lambda zoo: located.append(zoo) or folder)
    title = zoos.zoo_manifest(str(folder)).title
    assert not located
    text = (folder / "zoo.yaml").read_text()
    (folder / "zoo.yaml").write_text(
        text.replace(title, "Another title") if title else f"{text}\ntitle: Another title\n"
    )
    assert zoos.zoo_manifest(str(folder)).title == "Another title"
    assert located
    (folder / "zoo.yaml").unlink()
    with pytest.raises(ZooError, match="There is no zoo"):
        zoos.zoo_manifest(str(folder))


def test_a_folder_that_leads_out_of_the_roots_since_is_refused(store, tmp_path, monkeypatch):
    inside, outside = make_zoo(tmp_path / "inside" / "one", images=2), make_zoo(tmp_path / "outside" / "one", images=2)
    monkeypatch.setenv("MERGELENS_ROOTS", str(tmp_path / "inside"))
    link = tmp_path / "inside" / "link"
    link.symlink_to(inside)
    zoos.zoo_manifest(str(link))
    link.unlink()
    link.symlink_to(outside)
    with pytest.raises(ZooError, match="outside the folders"):
        zoos.zoo_manifest(str(link))
    monkeypatch.setenv("MERGELENS_ROOTS", os.fspath(tmp_path / "outside"))
    with pytest.raises(ZooError, match="outside the folders"):
        zoos.zoo_manifest(str(inside))


def test_a_zoo_outside_the_roots_is_open_as_long_as_it_is_known(store, tmp_path, monkeypatch):
    known = make_zoo(tmp_path / "known", images=2)
    monkeypatch.setenv("MERGELENS_ROOTS", str(tmp_path / "store"))
    (tmp_path / "store").mkdir(exist_ok=True)
    store.zoos.add(known)
    assert zoos.zoo_folder(str(known)) == known
    store.zoos.forget(known)
    with pytest.raises(ZooError, match="outside the folders"):
        zoos.zoo_manifest(str(known))
