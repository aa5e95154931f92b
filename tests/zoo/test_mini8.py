"""The bundled zoo: its drawings, and the folder it is shipped in."""

import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open

from benchmarks.zoo import targets
from engine.errors import EngineError
from engine.manifest import read_manifest
from engine.zoo.check import check_zoo
from engine.zoo.folder import Zoo
from engine.zoo.mini8.build import build, settings
from engine.zoo.mini8.bundled import MINI8
from engine.zoo.mini8.captions import caption_targets, partners
from engine.zoo.mini8.drawings import digits
from engine.zoo.mini8.edition import CaptionNoise, FinetuneConfig, PretrainConfig, Sizes
from engine.zoo.mini8.images import Split, check_disjoint, coarsened, digests, draw_split, published
from engine.zoo.mini8.parts import Parts, fingerprint
from engine.zoo.mini8.pretrain import training_set

SHIPPED = Path(__file__).resolve().parents[2] / "assets" / "zoos" / "mini8"
MEGABYTE = 1_000_000
by_task = pytest.mark.parametrize("task", MINI8.tasks, ids=[task.name for task in MINI8.tasks])


@by_task
def test_images_are_small_colour_pictures_of_every_class(task):
    split = draw_split(MINI8, task, "test", 60, seed=3)
    assert split.images.shape == (60, 32, 32, 3)
    assert split.images.dtype == np.uint8
    assert set(split.labels) == set(range(len(task.classes)))
    assert split.hardness.min() >= 0
    assert split.hardness.max() <= 1
    assert split.images.std(axis=(1, 2, 3)).min() > 3


@by_task
def test_a_seed_repeats_and_seeds_and_splits_differ(task):
    first, again, other = (draw_split(MINI8, task, "val", 12, seed=seed) for seed in (5, 5, 6))
    assert np.array_equal(first.images, again.images)
    assert np.array_equal(first.labels, again.labels)
    assert not digests(first.images) & digests(other.images)
    assert not digests(first.images) & digests(draw_split(MINI8, task, "test", 12, seed=5).images)


def test_tasks_have_distinct_names_and_classes_that_the_text_encoder_reads():
    assert len({task.name for task in MINI8.tasks}) == len(MINI8.tasks)
    assert len(set(MINI8.class_names)) == len(MINI8.class_names)
    for task in MINI8.tasks:
        assert MINI8.vocabulary.encode([f"a photo of {name}" for name in task.classes]).shape[0] == len(task.classes)
    with pytest.raises(ValueError, match="unknown words"):
        MINI8.vocabulary.encode(["a photo of nothing"])


def test_the_zoo_has_what_claims_need():
    tasks = {task.name: task for task in MINI8.tasks}
    usual = MINI8.sizes.in_domain["pretrain"]
    lacking = [task for task in MINI8.in_domain if MINI8.sizes.of(task)["pretrain"] <= usual / 3]
    assert len(MINI8.in_domain) == 8
    assert len(lacking) >= len(MINI8.in_domain) / 2
    assert MINI8.vision["layers"] >= 8
    assert sum(task.near in {task.name for task in MINI8.in_domain} for task in MINI8.tasks) >= 4
    *pairs, fourth = MINI8.analogy
    assert all(tasks[name].in_domain for name in pairs)
    assert not tasks[fourth].in_domain
    (fog,) = (task for task in MINI8.tasks if task.shifted_from)
    assert fog.classes == tasks[fog.shifted_from].classes
    assert "pretrain" not in MINI8.sizes.of(fog)


def test_an_analogy_is_the_same_things_drawn_otherwise():
    a, b, c, d = ({task.name: task for task in MINI8.tasks}[name] for name in MINI8.analogy)
    assert b.classes == tuple(f"outlined {name}" for name in a.classes)
    assert d.classes == tuple(f"outlined {name}" for name in c.classes)


def test_the_base_sees_as_many_images_as_the_recipe_says():
    tasks = tuple(replace(task, seen=24 if task.seen else 36) for task in MINI8.captioned)
    small = replace(MINI8, tasks=tasks)
    splits = {task.name: draw_split(small, task, "pretrain", task.seen) for task in tasks}
    images, targets = training_set(small, splits, small.pretrain)
    assert len(images) == len(targets) == sum(task.seen for task in tasks)
    assert targets.shape[1] == len(small.class_names)
    assert targets.sum(dim=1).numpy() == pytest.approx(1, abs=1e-5)


def test_colours_keep_their_first_bits():
    every = np.arange(256, dtype=np.uint8)
    coarse = coarsened(every, 5)
    assert np.array_equal(coarsened(every, 8), every)
    assert len(set(coarse.tolist())) == 32
    assert np.abs(coarse.astype(int) - every).max() <= 4


def test_digit_pools_do_not_overlap():
    scans, _ = digits.scans()
    pools = {split: digests(scans[slice(*digits.POOLS[split])]) for split in ("test", "adapt", "val", "train")}
    assert sum(len(pool) for pool in pools.values()) == len(set.union(*pools.values())) == 1797
    assert digits.POOLS["pretrain"] == digits.POOLS["train"]


def test_an_image_in_two_splits_is_refused():
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    check_disjoint("demo", {"test": images[:2], "val": images[2:]})
    with pytest.raises(ValueError, match=r"demo.*'val'.*test"):
        check_disjoint("demo", {"test": images[:2], "val": images[1:]})


def test_adaptation_images_are_published_without_labels():
    split = Split(np.zeros((2, 32, 32, 3), np.uint8), np.zeros(2, np.int64), np.zeros(2))
    found = published(dict.fromkeys(("pretrain", "train", "adapt", "val", "test"), split))
    assert sorted(found) == ["adapt", "test", "val"]
    assert [name for name, (_, labels) in found.items() if labels is None] == ["adapt"]


def test_captions_name_the_partner_more_often_the_harder_the_image():
    task = MINI8.tasks[1]
    split = Split(np.zeros((2, 1, 1, 3), np.uint8), np.array([4, 4]), np.array([0.0, 1.0]))
    targets = caption_targets(MINI8, task, split, CaptionNoise(0.15, 0.8, 0.0), seed=1)
    partner = partners(MINI8, task, seed=1)
    assert targets.sum(axis=1) == pytest.approx([1, 1])
    assert targets[0].argmax() == 4
    assert targets[1].argmax() == partner[4]
    assert sorted(partner) == list(range(len(task.classes)))
    assert all(partner[name] != name for name in range(len(task.classes)))


def test_a_part_is_trained_once_for_all_that_it_is_made_of(tmp_path):
    trained = []

    def train():
        trained.append(1)
        return {"weight": torch.arange(4.0)}

    first = Parts(tmp_path).take("part", (np.arange(3), FinetuneConfig()), train)
    again = Parts(tmp_path).take("part", (np.arange(3), FinetuneConfig()), train)
    assert len(trained) == 1
    assert torch.equal(first["weight"], again["weight"])
    Parts(tmp_path).take("part", (np.arange(3), FinetuneConfig(steps=1)), train)
    assert len(trained) == 2
    assert not list(tmp_path.glob("*.unfinished"))


def test_a_fingerprint_tells_contents_orders_and_types_apart():
    things = [
        {"a": np.arange(3), "b": 1},
        {"a": np.arange(3), "b": 2},
        {"a": np.arange(3, dtype=np.int32), "b": 1},
        {"a": torch.arange(3.0), "b": 1},
        (PretrainConfig(),),
        (PretrainConfig(seed=2),),
    ]
    assert len({fingerprint(thing) for thing in things}) == len(things)
    assert fingerprint(things[0]) == fingerprint({"a": np.arange(3), "b": 1})


def tiny():
    """The recipe with few images and a minute network."""
    sizes = Sizes(
        {"pretrain": 24, "train": 24, "adapt": 24, "val": 24, "test": 24},
        {"pretrain": 24, "val": 24, "test": 24},
        {"val": 24, "test": 24},
    )
    return replace(
        MINI8,
        tasks=tuple(replace(task, seen=24 if task.seen else task.seen, steps=task.steps and 3) for task in MINI8.tasks),
        sizes=sizes,
        vision={"width": 32, "layers": 2, "head_width": 16, "mlp_ratio": 1.0},
        pretrain=PretrainConfig(epochs=1, batch=64, warmup=1),
        finetune=FinetuneConfig(steps=2, batch=16),
        multitask_steps=2,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A tiny recipe, and the folder that holds its zoo, the two beside it, and the parts that were kept."""
    small, folder = tiny(), tmp_path_factory.mktemp("zoo")
    build(folder / "zoo", edition=small, second=True, twin=True, parts=folder / "parts", progress=lambda text: None)
    return small, folder


@pytest.mark.slow
def test_tiny_zoos_are_in_order_and_say_how_they_were_made(built):
    small, folder = built
    zoos = [folder / name for name in ("zoo", "zoo-experts2", "zoo-twin")]
    for zoo in zoos:
        found = check_zoo(str(zoo), lambda fraction, message="": None)  # a fault would be raised
        assert len(found) > len(small.in_domain)
    records = [json.loads((zoo / "build.json").read_text()) for zoo in zoos]
    assert [(r["seeds"]["pretrain"], r["seeds"]["experts"]) for r in records] == [(1, 1), (1, 2), (2, 1)]
    names = [read_manifest(zoo).name for zoo in zoos]
    assert names == [small.name, f"{small.name}-experts2", f"{small.name}-twin"]
    assert records[0]["digests"]["base"] == records[1]["digests"]["base"] != records[2]["digests"]["base"]
    assert all(r["digests"]["images"] == records[0]["digests"]["images"] for r in records)
    assert records[0]["digests"]["experts"] != records[1]["digests"]["experts"]
    assert {"drawing images", "base 1", "digits 1.1", "scoring"} <= set(records[0]["wall_s"])
    assert "multitask 1.1" in records[0]["wall_s"]
    assert (zoos[0] / "multitask.safetensors").is_file()
    assert "digits 1.1" not in records[1]["wall_s"]
    longer = {task.name: 3 for task in small.in_domain if task.steps}
    assert {name: steps for name, steps in records[0]["steps_of_experts"].items() if steps != 2} == longer


@pytest.mark.slow
def test_a_build_goes_on_from_the_parts_that_were_kept(built):
    small, folder = built
    before = {path.name for path in (folder / "parts").iterdir()}
    build(folder / "again", edition=small, parts=folder / "parts", progress=lambda text: None)
    assert {path.name for path in (folder / "parts").iterdir()} == before
    for file in ("base.safetensors", "experts/digits.safetensors", "zoo.yaml"):
        assert (folder / "again" / file).read_bytes() == (folder / "zoo" / file).read_bytes()


@pytest.mark.slow
def test_experts_of_another_seed_are_trained_on_a_finished_zoo(built):
    small, folder = built
    build(folder / "more", edition=small, expert_seed=2, on=folder / "zoo", progress=lambda text: None)
    files = ("zoo.yaml", "base.safetensors", "heads.safetensors", "multitask.safetensors", "experts/digits.safetensors")
    for file in files:
        assert (folder / "more" / file).read_bytes() == (folder / "zoo-experts2" / file).read_bytes(), file
    other = replace(small, pretrain=PretrainConfig(epochs=2, batch=64, warmup=1))
    with pytest.raises(EngineError, match="another recipe: its pretrain differ"):
        build(folder / "never", edition=other, on=folder / "zoo", progress=lambda text: None)
    with pytest.raises(EngineError, match="no whole zoo with a build record"):
        build(folder / "never", edition=small, on=folder, progress=lambda text: None)
    shutil.copytree(folder / "zoo", folder / "altered")
    (folder / "altered" / "base.safetensors").write_bytes((folder / "zoo-twin" / "base.safetensors").read_bytes())
    with pytest.raises(EngineError, match="not the base on its build record"):
        build(folder / "never", edition=small, on=folder / "altered", progress=lambda text: None)
    assert not (folder / "never").exists()


@pytest.mark.slow
def test_published_images_are_read_back_as_they_were_drawn(built):
    small, folder = built
    zoo = Zoo.open(str(folder / "zoo"))
    for task in small.tasks:
        drawn = draw_split(small, task, "test", 24)
        data = zoo.data[task.name]
        assert np.array_equal(np.stack([*data.samples("test")[np.arange(24)]]), drawn.images)
        assert np.array_equal(data.labels("test"), drawn.labels)
        assert data.has("adapt") == task.in_domain


@pytest.mark.parametrize("task", [MINI8.tasks[0], MINI8.tasks[-1]], ids=lambda task: task.name)
def test_the_shipped_images_are_drawn_again(task):
    again = draw_split(MINI8, task, "test", MINI8.sizes.of(task)["test"])
    data = bundled().data[task.name]
    assert np.array_equal(np.stack([*data.samples("test")[np.arange(len(again.images))]]), again.images)
    assert np.array_equal(data.labels("test"), again.labels)


@cache
def bundled():
    return Zoo.open(str(SHIPPED))


@cache
def manifest():
    return yaml.safe_load((SHIPPED / "zoo.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("task", MINI8.tasks, ids=[task.name for task in MINI8.tasks])
def test_shipped_splits_have_their_sizes_and_are_disjoint(task):
    data, sizes = bundled().data[task.name], MINI8.sizes.of(task)
    assert dict(data.lengths) == {split: sizes[split] for split in ("test", "adapt", "val") if split in sizes}
    splits = {split: np.stack([*data.samples(split)[np.arange(count)]]) for split, count in data.lengths.items()}
    assert all(images.dtype == np.uint8 and images.shape[1:] == (32, 32, 3) for images in splits.values())
    assert set(data.labels("test").tolist()) == set(range(len(task.classes)))
    check_disjoint(task.name, splits)


def test_shipped_heads_match_the_class_lists():
    entries = {entry["name"]: entry for entry in manifest()["tasks"]}
    assert list(entries) == [task.name for task in MINI8.tasks]
    with safe_open(SHIPPED / "heads.safetensors", "np") as heads:
        assert set(heads.keys()) == {*entries, "logit_scale"}
        assert heads.get_tensor("logit_scale").shape == ()
        for task in MINI8.tasks:
            head = heads.get_tensor(task.name)
            assert entries[task.name]["classes"] == list(task.classes)
            assert head.dtype == np.float32
            assert head.shape == (len(task.classes), 128)
            assert np.linalg.norm(head, axis=1) == pytest.approx(1, abs=1e-5)


def visual_tensors(path):
    with safe_open(path, "np") as file:
        names = [name for name in list(file.keys()) if name.startswith("visual.")]
        assert path.name == "base.safetensors" or len(names) == len(file.keys())
        return {name: (tuple(file.get_slice(name).get_shape()), file.get_slice(name).get_dtype()) for name in names}


def test_shipped_experts_hold_the_visual_tensors_of_the_base():
    expected = visual_tensors(SHIPPED / "base.safetensors")
    files = [entry["weights"] for entry in manifest()["experts"]] + [manifest()["references"][0]["weights"]]
    assert len(files) == 9
    assert {dtype for _, dtype in expected.values()} == {"F16"}
    for file in files:
        assert visual_tensors(SHIPPED / file) == expected


def test_the_shipped_zoo_is_what_its_recipe_says_and_its_record_is_of_it():
    said = json.loads((SHIPPED / "build.json").read_text(encoding="utf-8"))
    recipe = json.loads(json.dumps(settings(MINI8, said["seeds"]["pretrain"], said["seeds"]["experts"])))
    assert {key: said[key] for key in recipe if key != "versions"} == {
        key: value for key, value in recipe.items() if key != "versions"
    }
    record = yaml.safe_load((SHIPPED / "record.yaml").read_text(encoding="utf-8"))
    assert record["split"] == "test"
    assert len(record["training_seeds"]) == 5
    assert record["zoos"][0]["seeds"] == said["seeds"]
    assert record["zoos"][0]["by_task"]["pretrained"] == pytest.approx(
        said["accuracy"]["test"]["by_task"]["base"], abs=0.5
    )
    assert json.loads(json.dumps(targets(record["zoos"]))) == record["targets"]


def test_the_shipped_zoo_is_small_and_its_record_shows_a_gap():
    assert sum(file.stat().st_size for file in SHIPPED.rglob("*") if file.is_file()) < 37 * MEGABYTE
    average = json.loads((SHIPPED / "build.json").read_text(encoding="utf-8"))["accuracy"]["test"]["average"]
    assert 35 < average["base"]["in"] < 60
    assert average["experts"]["in"] > 93
    assert average["base"]["in"] + 12 < average["task_arithmetic_0.3"]["in"] < average["multitask"]["in"] - 12
