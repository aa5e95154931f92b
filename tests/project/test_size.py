"""The project stays small enough to be cloned: what is tracked, and the length of its files."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 61 * 2**20  # bytes of all tracked files together


def tracked() -> list[Path]:
    """Tracked files as they lie here; skips where this is no checkout of git."""
    try:
        done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"not a checkout of git: {error}")
    return [ROOT / name for name in done.stdout.split("\0") if name]


def test_tracked_files_are_at_most_61_mib():
    files = tracked()
    assert len(files) > 1000
    size = sum(file.lstat().st_size for file in files if file.exists())
    assert size <= LIMIT, f"{size:,} bytes are tracked, {size - LIMIT:,} more than {LIMIT:,}"
