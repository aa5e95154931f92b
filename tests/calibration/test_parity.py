"""Calibrators against the published programs' numbers (tests/reference/calibrators/README.md).

What is compared with which reference is said by ``engine.selfcheck``, which also checks any other folder.
"""

from pathlib import Path

import pytest
import torch

from engine.calibration import IntervMerge
from engine.catalog.calibrators import ProbSurgeryParams
from engine.catalog.deep_calibrators import IntervMergeParams
from engine.selfcheck.calibrators import CHECKS, FAMILIES
from engine.selfcheck.calibrators.encoder import sizes, small_encoder
from engine.selfcheck.calibrators.interv_merge import FREE, each_module
from engine.selfcheck.reference import PRECISIONS, CalibratorReference
from engine.selfcheck.run import compare

REFERENCE = CalibratorReference(Path(__file__).parents[1] / "reference" / "calibrators")
EXACT = {"rtol": 1e-9, "atol": 1e-12}


def test_every_reference_stands_for_something_and_says_where_it_comes_from():
    assert set(REFERENCE.names) == set(CHECKS)
    assert sum(len(family.CHECKS) for family in FAMILIES) == len(CHECKS), "two families share a name"
    assert {path.name.partition(".")[0] for path in REFERENCE.folder.glob("*.safetensors.xz")} == set(CHECKS)
    assert all(REFERENCE.facts(name)["source"] for name in CHECKS)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", CHECKS)
def test_reference_numbers(name, precision):
    found, note = compare(REFERENCE, name, precision)
    assert found.within, f"{found.error:.2g} at {found.where}"
    assert not note, "everything is compared"


def test_pda_has_no_divergence_unless_asked():
    assert ProbSurgeryParams(sharing="pda").kl_weight == 0


def test_interventions_do_not_depend_on_the_layout_of_the_encoder():
    name = "interv_tiny_vit_cls_all_blocks"
    numbers, facts = REFERENCE.numbers(name, "float64"), REFERENCE.facts(name)
    calibrator = IntervMerge()
    calibrator.reset(("A",), sizes(facts), IntervMergeParams(rank=2), dtype=torch.float64)
    for module, place in each_module(calibrator):
        for part, theirs in FREE.items():
            getattr(calibrator, part).data[place] = numbers[f"{module}.{theirs}"]
    visual = small_encoder(numbers, facts, "merged")
    visual.transformer.batch_first = False
    for block in visual.transformer.resblocks:
        block.attn.batch_first = False
    assert not visual.transformer.batch_first
    found = calibrator.correct_features(visual, numbers["images"], "A")
    torch.testing.assert_close(found, numbers["feature_student"], **EXACT)
