"""Manifests of zoos, read once for each change of their file."""

from pathlib import Path

import streamlit as st

from engine.manifest import Manifest, locate_zoo, manifest_file, read_manifest
from engine.zoo.importing.roots import check_zoo
from pages.shared.state import store

MANIFESTS = 1_000  # more than there are zoos: the Lab's form shows the title of every one


def zoo_manifest(zoo: str) -> Manifest:
    """Return a zoo's manifest.

    Raises:
        ZooError: there is no such zoo, it lies outside the roots, or its manifest cannot be used.
    """
    check_zoo(zoo, store().zoos.list)
    folder = locate_zoo(zoo)
    return _manifest(str(folder), manifest_file(folder).stat().st_mtime_ns)


@st.cache_resource(max_entries=MANIFESTS, show_spinner=False)
def _manifest(folder: str, modified: int) -> Manifest:
    return read_manifest(Path(folder))
