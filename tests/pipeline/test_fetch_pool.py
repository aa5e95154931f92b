"""Pools of FusionBench as what to fetch, and prompts asked for when a described zoo is made."""

import json
import shutil
from pathlib import Path

import open_clip
import pytest
import yaml

from engine.errors import ZooError
from engine.manifest import locate_zoo, made_folder, read_manifest
from engine.pipeline.foreign import fusionbench_pool
from engine.zoo.described.make import holding
from tests.pipeline.described_files import CONFIG, TASKS

pytestmark = pytest.mark.usefixtures("cache")
TARGET = "fusion_bench.modelpool.CLIPVisionModelPool"


@pytest.fixture
def pool(tmp_path, monkeypatch):
    """A pool of the made experts, with a task that no catalogue has and a model that is no expert."""
    (tmp_path / "towers").mkdir()
    (tmp_path / "towers" / "Made-16.json").write_text(json.dumps(CONFIG))
    open_clip.add_model_config(tmp_path / "towers")
    monkeypatch.setitem(fusionbench_pool.BASES, "own/base", "Made-16")
    models = {"_pretrained_": "own/base", "_multitask_": "own/many", **{name: f"own/expert_{name}" for name in TASKS}}
    document = {"_target_": TARGET, "models": models, "train_datasets": {"mnist": "mnist"}, "processor": "own/base"}
    path = tmp_path / "pair.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture
def images(hub, tmp_path):
    """The made images in the repositories that the catalogue names."""
    root = tmp_path / "hub" / "datasets"
    for name, place in (("mnist", "ylecun/mnist"), ("svhn", "ufldl-stanford/svhn")):
        (root / place).parent.mkdir(exist_ok=True)
        shutil.copytree(root / "own" / name, root / place)


def test_a_pool_is_fetched_and_runs(pool, images, command, tmp_path):
    called = command("zoo", "fetch", pool, "--yes")
    assert called.code == 0, called.err
    assert "GB in 5 source(s)" in called.out
    assert "Models that are no experts: _multitask_" in called.out
    assert "train_datasets" in called.out
    folder = called.out.split("is ready (")[1].split(")")[0]
    manifest = read_manifest(Path(folder))
    assert [expert.name for expert in manifest.experts] == list(TASKS)
    assert manifest.task_table["mnist"].data == "data/mnist"
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"zoo": folder}))
    called = command("run", recipe, "-q")
    assert called.code == 0, called.err
    assert command("zoo", "fetch", pool).out.startswith("Not taken")
    assert "is ready; there is nothing to fetch" in command("zoo", "fetch", pool).out


def test_pools_of_one_file_name_do_not_replace_each_other(tmp_path):
    described = {}
    for who, task in (("one", "mnist"), ("other", "svhn")):
        (tmp_path / who).mkdir()
        path = tmp_path / who / "pool.yaml"
        models = {"_pretrained_": "openai/clip-vit-base-patch32", task: f"tanganke/clip-vit-base-patch32_{task}"}
        path.write_text(yaml.safe_dump({"_target_": TARGET, "models": models}))
        described[task], _ = fusionbench_pool.described(str(path))
    for task, place in described.items():
        assert [expert.name for expert in read_manifest(Path(place)).experts] == [task]
    assert len({made_folder(Path(place)) for place in described.values()}) == 2
    assert fusionbench_pool.described(str(tmp_path / "one" / "pool.yaml"))[0] == described["mnist"]


def test_offline_a_pool_names_its_files_once(pool, command):
    called = command("zoo", "fetch", pool, "--yes")
    assert called.code == 1
    assert called.err.count("cannot be reached") == 1
    for part in ("own/base/", "own/expert_mnist/", "ylecun/mnist/"):
        assert called.err.count(part) == 1


def test_nothing_of_a_pool_is_downloaded_without_a_yes(hub, images, pool, command, monkeypatch):
    monkeypatch.setattr("typer.confirm", lambda *args, **options: False)
    called = command("zoo", "fetch", pool)
    assert called.code == 1
    assert "Nothing was downloaded" in called.err
    assert hub.downloads() == []


def test_what_the_catalogue_does_not_have_is_said(pool, command):
    document = yaml.safe_load(pool.read_text())
    document["models"]["marbles"] = "own/expert_marbles"
    document["defaults"] = [{"/dataset/image_classification/test@test_datasets": ["mnist", "hats"]}]
    pool.write_text(yaml.safe_dump(document))
    called = command("zoo", "fetch", pool, "--yes")
    assert "Images and classes of marbles: the catalogue has no such data set." in called.out
    assert "does not have: hats." in called.out


def test_known_experts_bring_their_published_accuracies(tmp_path):
    tasks = ("mnist", "stanford-cars")
    models = {name: f"tanganke/clip-vit-base-patch32_{name}" for name in tasks}
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump({"_target_": TARGET, "models": {"_pretrained_": "clip", **models}}))
    with pytest.raises(ZooError, match="'_pretrained_' is clip"):
        fusionbench_pool.read_pool(path)
    path.write_text(
        yaml.safe_dump({"_target_": TARGET, "models": {"_pretrained_": "openai/clip-vit-base-patch32", **models}})
    )
    zoo = yaml.safe_load(fusionbench_pool.read_pool(path))
    assert zoo["published"]["accuracy"]["expert"] == {"mnist": 99.58, "stanford-cars": 78.52}
    assert zoo["templates"] == "fusionbench"
    path.write_text(
        yaml.safe_dump({"_target_": TARGET, "models": {"_pretrained_": "openai/clip-vit-base-patch32", "mnist": "a/b"}})
    )
    assert "published" not in yaml.safe_load(fusionbench_pool.read_pool(path))


def test_prompts_are_chosen_when_a_zoo_is_fetched(hub, described, command, tmp_path):
    own = tmp_path / "prompts.txt"
    own.write_text("a drawing of a {}.\n")
    folders = {}
    for asked in ("openai", "fusionbench", str(own)):
        called = command("zoo", "fetch", described, "--yes", "--templates", asked)
        assert called.code == 0, called.err
        folders[asked] = called.out.split("is ready (")[1].split(")")[0] if "is ready (" in called.out else ""
    tables = {asked: read_manifest(Path(folder)).task_table for asked, folder in folders.items() if folder}
    assert tables["openai"]["mnist"].template_set == "openai"
    assert tables[str(own)]["mnist"].templates == ("a drawing of a {}.",)
    assert len({folder for folder in folders.values() if folder}) == len(tables) >= 2
    called = command("zoo", "fetch", described, "--templates", "opnai")
    assert called.code == 1
    assert "openai" in called.err


def test_prompts_do_not_change_heads_that_come_along(described):
    document = yaml.safe_load(described.read_text())
    described.write_text(yaml.safe_dump({**document, "heads": "local:heads.safetensors"}))
    with pytest.raises(ZooError, match="brings its heads"):
        holding(str(described), (), "openai")
    assert locate_zoo(str(described))
