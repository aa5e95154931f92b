"""Training a calibrator on a share of the adaptation images."""

import pytest

from engine.calibration.base import load_calibrator
from engine.errors import EngineError
from engine.pipeline.local import run_recipe
from engine.pipeline.run.calibrating import shared_out
from engine.recipe import Probe, parse_recipe
from engine.store import Store
from engine.zoo.folder import Zoo
from engine.zoo.images.splits import select
from tests.tiny_zoo import make_zoo


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    return make_zoo(tmp_path_factory.mktemp("zoo") / "tiny")


def test_a_share_is_a_part_of_the_images_that_the_seed_draws(zoo):
    chosen = select(Zoo.open(str(zoo)).data["alpha"], Probe())
    half, again, other = (shared_out(chosen, 0.5, seed, "alpha").adapt_rows for seed in (3, 3, 4))
    assert half.tolist() == again.tolist() == sorted(set(half) & set(chosen.adapt_rows))
    assert len(half) == len(other) == 12
    assert half.tolist() != other.tolist()
    assert shared_out(chosen, 0.001, 3, "alpha").adapt_rows.size == 1
    assert shared_out(chosen, 1.0, 3, "alpha") is chosen


def test_only_a_share_is_trained_on(zoo, tmp_path):
    store, made = Store(tmp_path / "store"), {}
    for share in (1.0, 0.5):
        params = {"steps": 60, "rank": 4, "batch_size": 8, "share": share, "learning_rate": 0.02}
        call = {"method": "surgery", "params": params}
        report = run_recipe(parse_recipe({"zoo": str(zoo), "calibrators": [call]}), store, out=tmp_path / str(share))
        assert ("share" in report.recipe.calibrators[0].params) == (share < 1)  # older recipes keep their keys
        module = load_calibrator(tmp_path / str(share) / "calibrators" / "surgery.safetensors")
        fitted = dict(
            zip(report.calibrators["surgery"].curve_columns, report.calibrators["surgery"].curve[-1], strict=True)
        )
        made[share] = (module.up.detach(), fitted["l1_adapt"])
    assert not made[1.0][0].equal(made[0.5][0])
    assert made[0.5][1] != made[1.0][1]  # what is measured as fitted are the images of the share


def test_a_share_smaller_than_a_batch_is_refused(zoo, tmp_path):
    call = {"method": "surgery", "params": {"steps": 5, "share": 0.25}}
    with pytest.raises(EngineError, match="6"):
        run_recipe(parse_recipe({"zoo": str(zoo), "calibrators": [call]}), Store(tmp_path / "store"))
