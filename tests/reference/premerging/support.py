"""The shipped references of what happens before a merge, for tests."""

from __future__ import annotations

from pathlib import Path

from engine.selfcheck.reference import PremergingReference

FOLDER = Path(__file__).parent
REFERENCE = PremergingReference(FOLDER)
