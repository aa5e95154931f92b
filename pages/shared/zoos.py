"""Manifests of zoos, read once for each change of their file."""

from pathlib import Path

import streamlit as st

from engine.manifest import Manifest, locate_zoo, manifest_file, read_manifest


def zoo_manifest(zoo: str) -> Manifest:
    """Return a zoo's manifest.

    Raises:
        ZooError: there is no such zoo, or its manifest cannot be used.
    """
    folder = locate_zoo(zoo)
    return _manifest(str(folder), manifest_file(folder).stat().st_mtime_ns)


@st.cache_resource(max_entries=16, show_spinner=False)
def _manifest(folder: str, modified: int) -> Manifest:
    return read_manifest(Path(folder))
