"""Fine-tuning, alignment and theory against numbers made with the authors' code (or written from the equations).

Which part of the engine stands for which reference is said by ``engine.selfcheck``, which also checks any other folder.
"""

import pytest

from engine.selfcheck.premerging import CHECKS, FAMILIES
from engine.selfcheck.reference import PRECISIONS
from engine.selfcheck.run import compare
from tests.reference.premerging.support import FOLDER, REFERENCE

NOT_WHOLE = {"osrm_subspace_code", "activation_matching"}  # where part of a reference is an arbitrary choice


def test_every_reference_stands_for_something():
    assert set(REFERENCE.names) == set(CHECKS)
    assert sum(len(family.CHECKS) for family in FAMILIES) == len(CHECKS), "two families share a name"
    files = {entry["file"].removeprefix("outputs/") for entry in REFERENCE.entries.values()}
    assert {path.name.removesuffix(".xz") for path in (FOLDER / "outputs").iterdir()} == files


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", CHECKS)
def test_reference_numbers(name, precision):
    found, note = compare(REFERENCE, name, precision)
    assert found.within, f"{found.error:.2g} at {found.where}"
    assert bool(note) == (name in NOT_WHOLE), "everything else is compared completely"
