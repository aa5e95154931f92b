"""Manifests as pages read them."""

from __future__ import annotations

from pathlib import Path

from engine.manifest import known_zoos, read_manifest
from pages.shared import zoos


def test_manifests_of_all_known_zoos_are_read_once(monkeypatch):
    read = []

    def reading(folder: Path):
        read.append(folder)
        return read_manifest(folder)

    monkeypatch.setattr(zoos, "read_manifest", reading)
    zoos._manifest.clear()
    names = [zoo.name for zoo in known_zoos()]
    for name in (*names, *names):
        zoos.zoo_manifest(name)
    assert len(read) == len(set(read)) == len(names)
    zoos._manifest.clear()
