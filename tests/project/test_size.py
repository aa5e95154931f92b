"""The project stays small enough to be cloned: what is tracked, and the length of its files."""

import subprocess
from pathlib import Path

import pytest

from engine.zoo.making.targets import target_record

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 61  # MiB of all tracked files together


def tracked() -> list[Path]:
    """Tracked files as they lie here; skips where this is no checkout of git."""
    try:
        done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"not a checkout of git: {error}")
    return [ROOT / name for name in done.stdout.split("\0") if name]


def test_tracked_files_are_at_most_as_large_as_the_zoo_page_says():
    files = tracked()
    assert len(files) > 1000
    size = sum(file.lstat().st_size for file in files if file.exists()) / 2**20
    assert LIMIT - 1 < size <= LIMIT, f"{size:.2f} MiB are tracked"
    said = target_record(ROOT / "assets/zoos/mini8").beside
    assert [(target.measured, target.most, target.met) for target in said] == [(LIMIT, 52, False)]
