"""Calibrators against the published programs' numbers (tests/reference/calibrators/README.md).

What is compared with which reference is said by ``engine.selfcheck``, which also checks any other folder.
"""

from pathlib import Path

import pytest
import torch

from engine.calibration import IntervMerge, ProbSurgery
from engine.calibration.output import update_rule
from engine.calibration.tower import Tower
from engine.catalog.calibrators import IntervMergeParams, ProbSurgeryParams
from engine.selfcheck.calibrators import CHECKS, FAMILIES
from engine.selfcheck.calibrators.encoder import sizes, small_encoder
from engine.selfcheck.calibrators.interv_merge import FREE, each_module
from engine.selfcheck.calibrators.prob_surgery import NAMES
from engine.selfcheck.reference import PRECISIONS, CalibratorReference
from engine.selfcheck.run import compare

REFERENCE = CalibratorReference(Path(__file__).parents[1] / "reference" / "calibrators")
EXACT = {"rtol": 1e-9, "atol": 1e-12}


def test_every_reference_stands_for_something_and_says_where_it_comes_from():
    assert set(REFERENCE.names) == set(CHECKS)
    assert sum(len(family.CHECKS) for family in FAMILIES) == len(CHECKS), "two families share a name"
    assert {path.stem for path in REFERENCE.folder.glob("*.safetensors")} == set(CHECKS)
    assert all(REFERENCE.facts(name)["source"] for name in CHECKS)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", CHECKS)
def test_reference_numbers(name, precision):
    found, note = compare(REFERENCE, name, precision)
    assert found.within, f"{found.error:.2g} at {found.where}"
    assert bool(note) == name.startswith("probsurgery_") & name.endswith("_trajectory"), "all else is compared"


@pytest.mark.parametrize("semantics", ["indep", "shared"])
@pytest.mark.parametrize(
    ("name", "sharing"), [("probsurgery_one2one_trajectory", "none"), ("probsurgery_dfa_trajectory", "dfa")]
)
def test_losses_of_prob_surgery_are_the_logged_ones_and_a_small_divergence(name, sharing, semantics):
    numbers, tasks = REFERENCE.numbers(name, "float64"), ("A", "B", "C")
    calibrator, config = ProbSurgery(), ProbSurgeryParams(hidden=5, sharing=sharing, adam_semantics=semantics)
    z, target = (torch.stack([numbers[f"z_{who}_{t}"] for t in tasks], 1) for who in ("merged", "expert"))
    stack = calibrator.reset(tasks, {"dim": z.shape[-1]}, config, dtype=torch.float64)
    for row, suffix in enumerate([""] if calibrator.shared else ["_A", "_B", "_C"]):
        calibrator.narrow.data[row].copy_(numbers[f"init_{NAMES['narrow']}{suffix}"])
    noise = numbers["eps_per_step"].view(*z.shape[:2], 1, *z.shape[2:])
    update = update_rule(calibrator, stack, config)
    mine = torch.cat([update(z[step], target[step], noise[step]) for step in range(len(z))])
    excess = mine - numbers[f"{semantics}_l1_per_step"]
    assert (excess >= -1e-9).all()
    assert (excess < 1e-5).all()


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
    assert not Tower(visual).batch_first
    found = calibrator.correct_features(visual, numbers["images"], "A")
    torch.testing.assert_close(found, numbers["feature_student"], **EXACT)
