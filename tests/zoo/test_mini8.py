"""The bundled zoo: its drawings, and the folder it is shipped in."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors import safe_open

from engine.zoo.mini8.captions import CaptionNoise, caption_targets, partners
from engine.zoo.mini8.drawings import digits
from engine.zoo.mini8.images import SIZES_IN, SIZES_OUT, Split, check_disjoint, digests, draw_split, published_arrays
from engine.zoo.mini8.tasks import CLASS_NAMES, IN_DOMAIN, OUT_OF_DOMAIN, TASKS

SHIPPED = Path(__file__).resolve().parents[2] / "assets" / "zoos" / "mini8"
MEGABYTE = 1_000_000
by_task = pytest.mark.parametrize("task", TASKS, ids=[task.name for task in TASKS])
shipped = pytest.mark.skipif(not (SHIPPED / "zoo.yaml").is_file(), reason="the bundled zoo has not been built")


@by_task
def test_images_are_small_colour_pictures_of_every_class(task):
    split = draw_split(task, "test", 60, seed=3)
    assert split.images.shape == (60, 32, 32, 3)
    assert split.images.dtype == np.uint8
    assert set(split.labels) == set(range(len(task.classes)))
    assert split.hardness.min() >= 0
    assert split.hardness.max() <= 1
    assert split.images.std(axis=(1, 2, 3)).min() > 3


@by_task
def test_a_seed_repeats_and_seeds_and_splits_differ(task):
    first, again, other = (draw_split(task, "val", 12, seed=seed) for seed in (5, 5, 6))
    assert np.array_equal(first.images, again.images)
    assert np.array_equal(first.labels, again.labels)
    assert not digests(first.images) & digests(other.images)
    assert not digests(first.images) & digests(draw_split(task, "test", 12, seed=5).images)


def test_tasks_have_distinct_names_and_classes():
    assert len({task.name for task in TASKS}) == len(TASKS) == len(IN_DOMAIN) + len(OUT_OF_DOMAIN)
    assert len(set(CLASS_NAMES)) == len(CLASS_NAMES)


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
    arrays = published_arrays(TASKS[0], dict.fromkeys(("pretrain", "train", "adapt", "val", "test"), split))
    assert sorted(arrays) == ["adapt_x", "test_x", "test_y", "val_x", "val_y"]


def test_captions_name_the_partner_more_often_the_harder_the_image():
    task = TASKS[1]
    split = Split(np.zeros((2, 1, 1, 3), np.uint8), np.array([4, 4]), np.array([0.0, 1.0]))
    targets = caption_targets(task, split, CaptionNoise(0.15, 0.8, 0.0), seed=1)
    partner = partners(task, seed=1)
    assert targets.sum(axis=1) == pytest.approx([1, 1])
    assert targets[0].argmax() == 4
    assert targets[1].argmax() == partner[4]
    assert sorted(partner) == list(range(len(task.classes)))
    assert all(partner[name] != name for name in range(len(task.classes)))


@cache
def manifest():
    return yaml.safe_load((SHIPPED / "zoo.yaml").read_text(encoding="utf-8"))


@cache
def arrays(task):
    with np.load(SHIPPED / "data" / f"{task}.npz") as file:
        return dict(file)


@shipped
@by_task
def test_shipped_splits_have_their_sizes_and_are_disjoint(task):
    data = arrays(task.name)
    sizes = SIZES_IN if task.in_domain else SIZES_OUT
    splits = {split: data[f"{split}_x"] for split in ("test", "adapt", "val") if split in sizes}
    assert {split: len(images) for split, images in splits.items()} == {split: sizes[split] for split in splits}
    assert all(images.dtype == np.uint8 and images.shape[1:] == (32, 32, 3) for images in splits.values())
    assert set(data["test_y"]) == set(range(len(task.classes)))
    assert "adapt_y" not in data
    check_disjoint(task.name, splits)


@shipped
def test_shipped_heads_match_the_class_lists():
    entries = {entry["name"]: entry for entry in manifest()["tasks"]}
    assert list(entries) == [task.name for task in TASKS]
    with safe_open(SHIPPED / "heads.safetensors", "np") as heads:
        assert set(heads.keys()) == {*entries, "logit_scale"}
        assert heads.get_tensor("logit_scale").shape == ()
        for task in TASKS:
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


@shipped
def test_shipped_experts_hold_the_visual_tensors_of_the_base():
    expected = visual_tensors(SHIPPED / "base.safetensors")
    files = [entry["weights"] for entry in manifest()["experts"]] + [manifest()["references"][0]["weights"]]
    assert len(files) == 9
    assert {dtype for _, dtype in expected.values()} == {"F16"}
    for file in files:
        assert visual_tensors(SHIPPED / file) == expected


@shipped
def test_shipped_zoo_is_small_and_its_record_shows_a_gap():
    weights = sum(file.stat().st_size for file in SHIPPED.rglob("*.safetensors"))
    images = sum(file.stat().st_size for file in SHIPPED.rglob("*.npz"))
    assert weights < 36 * MEGABYTE
    assert images < 30 * MEGABYTE
    average = json.loads((SHIPPED / "build.json").read_text(encoding="utf-8"))["accuracy"]["test"]["average"]
    assert 35 < average["base"]["in"] < 60
    assert average["experts"]["in"] > 95
    assert average["base"]["in"] + 15 < average["task_arithmetic_0.3"]["in"] < average["experts"]["in"] - 12
