"""Pre-flight: findings before anything long starts, and what it expects a run to take."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from engine.catalog import resolve
from engine.errors import CalibrationError
from engine.pipeline.local import preflight_recipe, run_recipe
from engine.pipeline.preflight.estimate import LIBRARIES, estimate, gather
from engine.pipeline.rates import Rates, add_rate, keep_rates, known_rates
from engine.recipe import parse_recipe
from engine.store import Store
from engine.zoo.encoders.architecture import tower_size
from engine.zoo.encoders.backbone import outline
from engine.zoo.folder import Zoo
from engine.zoo.images.config import architectures
from tests.tiny_zoo import make_zoo

CALIBRATORS = [{"method": "surgery", "params": {"rank": 4, "steps": 20}}]


@pytest.fixture
def zoo(tmp_path):
    return make_zoo(tmp_path / "tiny")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store", database_url=f"sqlite:///{tmp_path / 'runs.sqlite'}")


def recipe_of(zoo, **changes):
    return parse_recipe({"zoo": str(zoo), "calibrators": CALIBRATORS, **changes})


def texts(found, level):
    return " ".join(finding.text for finding in found.findings if finding.level == level)


def test_a_sound_recipe_has_no_faults_and_an_estimate(zoo, store):
    found = preflight_recipe(recipe_of(zoo), store)
    assert found.faults == []
    assert all(f"{name}: " in texts(found, "note") for name in ("base", "alpha", "beta", "gamma", "outside", "heads"))
    assert set(found.estimate.parts) >= {"features", "calibrate"}
    assert found.estimate.seconds > 0
    assert "measured on this machine" in found.estimate.basis
    (row,) = store.runs.list(kinds=("preflight",))
    assert row.state == "finished"


def test_everything_is_found_at_once(zoo, store):
    broken = load_file(zoo / "experts" / "alpha.safetensors")
    broken["visual.proj"][0, 0] = torch.nan
    save_file(broken, zoo / "experts" / "alpha.safetensors")
    short = load_file(zoo / "experts" / "beta.safetensors")
    short["visual.proj"] = short["visual.proj"][:, :4].contiguous()
    save_file(short, zoo / "experts" / "beta.safetensors")
    with np.load(zoo / "data" / "gamma.npz") as arrays:
        np.savez(zoo / "data" / "gamma.npz", **{**arrays, "test_y": arrays["test_y"] + 1})
    heads = load_file(zoo / "heads.safetensors")
    heads["outside"] = heads["outside"][:2].contiguous()
    save_file(heads, zoo / "heads.safetensors")
    found = preflight_recipe(recipe_of(zoo, merge={"method": "slerp"}), store)
    said = " ".join(found.faults)
    for part in ("1 NaN", "'beta' has visual.proj of shape", "holds the label 3", "head of 'outside'", "at most 2"):
        assert part in said, part


def test_experts_that_train_different_tensors_are_named(zoo, store):
    frozen = load_file(zoo / "experts" / "alpha.safetensors")
    frozen["visual.proj"] = load_file(zoo / "base.safetensors")["visual.proj"]
    save_file(frozen, zoo / "experts" / "alpha.safetensors")
    save_file(load_file(zoo / "base.safetensors"), zoo / "experts" / "gamma.safetensors")
    warned = texts(preflight_recipe(recipe_of(zoo), store), "warning")
    assert "visual.proj was fine-tuned in beta and kept at the base's values in alpha" in warned
    assert "'gamma' equals the base" in warned


def test_a_lower_precision_and_an_empty_class_are_warnings(zoo, store):
    half = {name: value.half() for name, value in load_file(zoo / "experts" / "alpha.safetensors").items()}
    save_file(half, zoo / "experts" / "alpha.safetensors")
    with np.load(zoo / "data" / "beta.npz") as arrays:
        np.savez(zoo / "data" / "beta.npz", **{**arrays, "test_y": arrays["test_y"] % 2})
    found = preflight_recipe(recipe_of(zoo), store)
    assert found.faults == []
    assert "'alpha' is stored in float16, the base in float32" in texts(found, "warning")
    assert "no test image is of class star" in texts(found, "warning")


def test_a_reference_is_called_one(zoo, store):
    half = {name: value.half() for name, value in load_file(zoo / "experts" / "alpha.safetensors").items()}
    save_file(half, zoo / "multitask.safetensors")
    document = yaml.safe_load((zoo / "zoo.yaml").read_text())
    document["references"] = [{"name": "multitask", "weights": "multitask.safetensors"}]
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(document))
    found = preflight_recipe(recipe_of(zoo), store)
    assert "Reference 'multitask' is stored in float16, the base in float32" in texts(found, "warning")
    del half["visual.proj"]
    save_file(half, zoo / "multitask.safetensors")
    assert any(
        "Reference 'multitask' lacks visual.proj" in fault for fault in preflight_recipe(recipe_of(zoo), store).faults
    )


def test_too_few_images_for_a_calibrators_batch_are_named(zoo, store):
    calibrators = [{"method": "surgery", "params": {"rank": 4, "steps": 20, "batch_size": 25}}]
    faults = preflight_recipe(recipe_of(zoo, calibrators=calibrators), store).faults
    assert len(faults) == 3
    assert "'alpha' leaves 24 images to adapt on; the calibrators take 25 at a time" in " ".join(faults)


@pytest.mark.parametrize("size", ["many", None, [4]])
def test_a_batch_size_that_is_no_number_is_one_finding_of_several(zoo, store, size):
    alike = {"method": "surgery", "name": "wide", "params": {"rank": 4, "steps": 20, "batch_size": 25}}
    calibrators = [{"method": "surgery", "params": {"batch_size": size}}, alike]
    faults = " ".join(preflight_recipe(recipe_of(zoo, calibrators=calibrators), store).faults)
    assert "batch_size" in faults
    assert "'alpha' leaves 24 images to adapt on; the calibrators take 25 at a time" in faults


def test_steps_of_large_batches_are_measured(tmp_path, store):
    large = {"rank": 4, "steps": 20, "batch_size": 100}
    calibrators = [{"method": "surgery", "params": large}, {"method": "prob_surgery", "params": {"steps": 20}}]
    zoo = make_zoo(tmp_path / "large", images=300)
    found = preflight_recipe(recipe_of(zoo, calibrators=calibrators), store)
    assert found.faults == []
    assert "measured on this machine" in found.estimate.basis
    assert len(known_rates(store).step) == 2


def test_what_was_measured_serves_where_the_rest_cannot_be(zoo, store, monkeypatch):
    def failing(*_):
        raise CalibrationError("no")

    monkeypatch.setattr("engine.pipeline.preflight.probe._steps", failing)
    assert "measured on this machine" in preflight_recipe(recipe_of(zoo), store).estimate.basis


def test_a_full_disk_stops_and_little_memory_warns(zoo, store, monkeypatch):
    monkeypatch.setattr("engine.pipeline.preflight.check.free_at", lambda folder: 1000)
    monkeypatch.setattr(
        "engine.pipeline.preflight.check.psutil.virtual_memory", lambda: type("M", (), {"available": 1000})
    )
    found = preflight_recipe(recipe_of(zoo), store)
    assert "of disk are needed" in " ".join(found.faults)
    assert "of memory are needed" in texts(found, "warning")


def test_what_is_in_the_store_is_not_counted_again(zoo, store, monkeypatch):
    before = preflight_recipe(recipe_of(zoo), store).estimate
    run_recipe(recipe_of(zoo), store)
    monkeypatch.setattr("engine.pipeline.preflight.check.free_at", lambda folder: 1000)
    found = preflight_recipe(recipe_of(zoo), store)
    assert sum(before.parts.values()) > 0
    assert sum(found.estimate.parts.values()) == 0
    assert before.disk_bytes > 2**20
    assert found.estimate.disk_bytes == 0
    assert found.faults == [], "a full disk holds everything already"


def test_the_probe_measures_a_machine_once(zoo, store):
    preflight_recipe(recipe_of(zoo), store)
    first = known_rates(store)
    keep_rates(store, read=123.0)
    preflight_recipe(recipe_of(zoo), store)
    again = known_rates(store)
    assert first.measured == again.measured > 0
    assert again.read == 123.0
    assert len(again.encode) == len(again.step) == 1
    keep_rates(store, measured=first.measured - 7 * 3600)
    preflight_recipe(recipe_of(zoo), store)
    assert known_rates(store).read != 123.0


def test_rates_that_are_found_at_the_same_time_are_all_kept(tmp_path):
    store = Store(tmp_path / "store")
    keep_rates(store, encode={"first": 1.0})
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: add_rate(store, "encode", f"tower {number}", float(number)), range(64)))
        list(pool.map(lambda number: keep_rates(store, read=float(number)), range(8)))
    assert set(known_rates(store).encode) == {"first", *(f"tower {number}" for number in range(64))}
    assert [file.suffix for file in (store.root / "rates").iterdir()] == [".json"]


def test_an_encoder_that_was_held_up_when_it_was_measured_is_corrected_by_a_run(zoo, store, monkeypatch):
    monkeypatch.setattr("engine.pipeline.run.encoding.MEASURED", 0.0)
    name = gather(Zoo.open(str(zoo)), resolve(recipe_of(zoo))).tower.name
    run_recipe(recipe_of(zoo), store)
    assert known_rates(store).encode == {}  # not measured yet
    keep_rates(store, encode={name: 1.0})
    run_recipe(recipe_of(zoo, merge={"method": "task_arithmetic", "params": {"scaling": 0.4}}), store)
    assert known_rates(store).encode[name] > 1000


def test_a_slow_encoder_is_measured_once(zoo, store, monkeypatch):
    monkeypatch.setattr("engine.pipeline.preflight.probe.LONG", 0.0)
    preflight_recipe(recipe_of(zoo), store)
    assert all(rate > 0 for rate in known_rates(store).encode.values())


def test_estimates_grow_with_what_is_asked_for(zoo):
    def guess(**changes):
        recipe = resolve(recipe_of(zoo, **changes))
        return estimate(recipe, gather(Zoo.open(str(zoo)), recipe), Rates())

    plain = guess()
    more = [{"method": "surgery", "params": {"rank": 4, "steps": 2000}}]
    assert guess(calibrators=more).parts["calibrate"] > 50 * plain.parts["calibrate"]
    assert guess(probe={"samples_per_task": 6}).parts.get("features", 0) <= plain.parts.get("features", 0)
    assert guess(merge={"method": "emr"}, calibrators=[]).disk_bytes > guess(calibrators=[]).disk_bytes
    learned = guess(merge={"method": "adamerging"}, calibrators=[])
    assert learned.seconds > guess(calibrators=[]).seconds
    assert learned.peak_memory_bytes > LIBRARIES
    routed = guess(merge={"method": "twin"}, calibrators=[])
    assert routed.disk_bytes > guess(merge={"method": "emr"}, calibrators=[]).disk_bytes
    short, long = (guess(merge={"method": "evolutionary", "params": {"evaluations": n}}).parts for n in (100, 1000))
    assert long["merge"] > 8 * short["merge"]
    with_coefficients = guess(merge={"method": "concrete", "params": {"coefficients": "layer"}}).parts["merge"]
    assert with_coefficients > 2 * guess(merge={"method": "concrete"}).parts["merge"]


@pytest.mark.parametrize("name", ["ViT-B-32", "ViT-B-16", "ViT-L-14", "ViT-H-14", "ViT-B-32-quickgelu"])
def test_sizes_of_official_architectures_are_exact(name):
    assert name in set(architectures())
    import open_clip

    config = open_clip.get_model_config(name)
    size = tower_size(config)
    assert size.parameters == sum(tensor.numel() for tensor in outline(config).parameters())


def test_the_command_prints_findings_and_an_estimate(command, zoo, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({"zoo": str(zoo), "calibrators": CALIBRATORS}))
    called = command("preflight", path)
    assert called.code == 0
    assert "About" in called.out
    assert "GiB of memory" in called.out
    (zoo / "experts" / "alpha.safetensors").write_bytes(b"nothing")
    (zoo / "data" / "beta.npz").unlink()
    called = command("preflight", path, "--json")
    assert called.code == 1
    faults = [part["text"] for part in json.loads(called.out)["findings"] if part["level"] == "error"]
    assert len(faults) >= 2
    assert "Traceback" not in called.err


def test_missing_validation_images_and_weights_per_image_are_found(zoo, store):
    with np.load(zoo / "data" / "gamma.npz") as arrays:
        kept = {name: arrays[name] for name in arrays.files if not name.startswith("val")}
    np.savez_compressed(zoo / "data" / "gamma.npz", **kept)
    said = " ".join(preflight_recipe(recipe_of(zoo, merge={"method": "evolutionary"}), store).faults)
    assert "(val_x, val_y), and task 'gamma' has none" in said
    deep = [{"method": "interv_merge"}]
    said = " ".join(preflight_recipe(recipe_of(zoo, merge={"method": "twin"}, calibrators=deep), store).faults)
    assert "Twin-Merging makes one for each image" in said
