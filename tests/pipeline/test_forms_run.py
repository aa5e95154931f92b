"""Whole runs on images in other forms than npz, and on a zoo without heads."""

import shutil

import numpy as np
import pytest
import yaml

from engine.errors import EngineError
from engine.pipeline.executor import run_inline
from engine.pipeline.local import run_recipe
from engine.pipeline.planners import plan_request
from engine.pipeline.run.plan import plan_run
from engine.pipeline.zoos.pictures import pictures_at
from engine.recipe import Probe, parse_recipe
from engine.store import Store
from engine.zoo.folder import Zoo
from engine.zoo.images.splits import select
from tests.image_files import encoded, picture, write_folders, write_parquet
from tests.tiny_zoo import make_zoo
from tests.zoo.test_text_heads import zoo_with_text

RECIPE = {
    "merge": {"method": "task_arithmetic"},
    "calibrators": [{"method": "surgery", "params": {"rank": 4, "steps": 5, "batch_size": 4}}],
}


def change(folder, **tasks):
    document = yaml.safe_load((folder / "zoo.yaml").read_text())
    for task in document["tasks"]:
        task |= tasks.get(task["name"], {})
    (folder / "zoo.yaml").write_text(yaml.safe_dump(document, sort_keys=False))


def recipe_for(folder, **more):
    return parse_recipe({"zoo": str(folder), **RECIPE, **more})


@pytest.fixture
def zoo(tmp_path):
    folder = make_zoo(tmp_path / "zoo")
    write_folders(folder / "data" / "alpha", each=6)
    write_parquet(folder / "data" / "beta.parquet", [0, 1, 2] * 6)
    change(folder, alpha={"data": "data/alpha"}, beta={"data": "data/beta.parquet"})
    return folder


def test_folders_and_parquet_run_like_arrays(zoo, tmp_path):
    store = Store(tmp_path / "store")
    report = run_recipe(recipe_for(zoo, probe={"samples_per_task": 12}), store)
    assert report.samples["alpha"].evaluate == report.samples["beta"].evaluate == 6
    assert report.samples["alpha"].available == 18
    assert set(report.accuracy["surgery"]) == {"alpha", "beta", "gamma"}

    folders, arrays = tmp_path / "same", zoo / "data" / "alpha.npz"
    shutil.copytree(zoo, folders)
    images = np.stack([np.asarray(picture(label, n, size=(16, 16))) for label in range(3) for n in range(6)])
    np.savez(arrays, test_x=images, test_y=np.repeat(np.arange(3), 6))
    for label, name in enumerate(("circle", "square", "star")):
        shutil.rmtree(folders / "data" / "alpha" / name)
        (folders / "data" / "alpha" / name).mkdir()
        for n in range(6):
            (folders / "data" / "alpha" / name / f"{n}.png").write_bytes(encoded(picture(label, n, size=(16, 16))))
    change(zoo, alpha={"data": "data/alpha.npz"})
    first, second = (run_recipe(recipe_for(folder), store) for folder in (zoo, folders))
    assert first.accuracy == second.accuracy
    assert first.bias["merged"].l1 == second.bias["merged"].l1


def test_corrupt_images_stop_a_run_or_are_left_out_by_choice(zoo, tmp_path):
    store = Store(tmp_path / "store")
    (zoo / "data" / "alpha" / "star" / "2.jpg").write_bytes(b"broken")
    with pytest.raises(EngineError, match=r"1 of 18 images cannot be decoded: star/2\.jpg.*`corrupt: skip`"):
        run_recipe(recipe_for(zoo), store)
    change(zoo, alpha={"corrupt": "skip"})
    report = run_recipe(recipe_for(zoo), store)
    assert report.samples["alpha"].available == 17
    assert any("1 images (1 test) cannot be decoded and are left out: star/2.jpg" in text for text in report.warnings)


def test_keys_follow_the_images(zoo, tmp_path):
    store = Store(tmp_path / "store")
    before = {step.key for step in plan_run(recipe_for(zoo), store).steps}
    shutil.copytree(zoo, tmp_path / "moved")
    assert {step.key for step in plan_run(recipe_for(tmp_path / "moved"), store).steps} == before
    (zoo / "data" / "alpha" / "star" / "0.jpg").write_bytes(encoded(picture(0), "JPEG"))
    changed = {step.key for step in plan_run(recipe_for(zoo), store).steps}
    assert before != changed
    assert before & changed


def test_a_zoo_without_heads_builds_them(tmp_path):
    folder = zoo_with_text(tmp_path / "zoo")
    store = Store(tmp_path / "store")
    plan = plan_run(recipe_for(folder, merge={"method": "adamerging", "params": {"steps": 2}}), store)
    assert [step.name for step in plan.steps].count("heads") == 1
    report = run_recipe(recipe_for(folder), store)
    assert set(report.accuracy["surgery"]) == {"alpha", "beta", "gamma"}
    heads = next(step.key for step in plan.steps if step.name == "heads")
    assert (store.find(heads) / "heads.safetensors").is_file()
    change(folder, alpha={"templates": ["{}"]})
    assert heads not in {step.key for step in plan_run(recipe_for(folder), store).steps}
    (folder / "vocabulary.json").unlink()
    with pytest.raises(EngineError, match=r"no heads: .*8 tokens"):
        plan_run(recipe_for(folder), store)
    assert run_recipe(recipe_for(folder, calibrators=[]), store).accuracy == {}


def test_registered_pictures_are_those_a_run_looks_at(zoo, tmp_path):
    store = Store(tmp_path / "store")
    probe = Probe(samples_per_task=9, split_seed=3)
    request = {"zoo": str(zoo), "task": "alpha", "per_class": None, "probe": probe.model_dump(mode="json")}
    plan = plan_request("register", request, store)
    folder = run_inline(plan, store)
    data = Zoo.open(str(zoo)).data["alpha"]
    rows = select(data, probe).test
    pictures = pictures_at(folder, rows[::-1])
    colours = pictures[:, 20:28, 20:28].reshape(len(rows), -1, 3).mean(axis=1).argmax(axis=1)
    np.testing.assert_array_equal(colours, data.labels("test")[rows[::-1]])
    absent = np.setdiff1d(np.arange(18), rows)[:1]
    with pytest.raises(EngineError, match="other images"):
        pictures_at(folder, absent)
    sampled = plan_request("register", {**request, "per_class": 2, "seed": 1}, store)
    labels = np.load(run_inline(sampled, store) / "test.labels.npy")
    np.testing.assert_array_equal(np.bincount(labels), [2, 2, 2])
    for wrong, message in (({"task": "alpa"}, "Did you mean 'alpha'"), ({"per_class": "all"}, "valid integer")):
        with pytest.raises(EngineError, match=message):
            plan_request("register", {**request, **wrong}, store)
