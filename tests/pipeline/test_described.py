"""Described zoos: listed with sizes, found in folders and caches, downloaded, converted, given heads, and run."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from engine.catalog.datasets import dataset_names
from engine.errors import EngineError, ZooError
from engine.manifest import known_zoos, locate_zoo, made_folder, read_manifest
from engine.pipeline.executor import run_inline
from engine.pipeline.zoos.fetch import FetchRequest, plan_fetch
from engine.store import Store
from engine.zoo.described.make import holding, make_zoo
from engine.zoo.described.sources import of_split, source_of
from engine.zoo.folder import Zoo
from tests.image_files import encoded, picture, write_mnist, write_parquet, write_zip
from tests.made_checkpoints import clip, moved, visual_of, write_head, write_pickle
from tests.made_imports import silent
from tests.pipeline.described_files import write_files
from tests.tiny_zoo import CONFIG as TINY

pytestmark = pytest.mark.usefixtures("cache")
CALIBRATORS = [{"method": "surgery", "params": {"steps": 5, "batch_size": 4}}]


def test_every_description_that_comes_with_the_app_can_be_read():
    names = {zoo.name: zoo for zoo in known_zoos()}
    assert {f"clip-vit-{size}-ta{n}" for size in ("b32", "b16", "l14") for n in (8, 14, 20)} <= set(names)
    assert names["mini8"].ready
    for zoo in names.values():
        found = holding(zoo.name)
        if zoo.described:
            experts = len(found.manifest.experts)
            assert str(experts) in zoo.name or experts == 8
            assert all(item.about > 3e8 for item in found.missing if item.role in ("base", "expert"))
            known = set(dataset_names()) if found.manifest.modality == "image" else {None}
            assert {task.dataset for task in found.manifest.tasks} <= known
        else:
            assert found is None


def test_opening_downloads_nothing_and_says_what_is_missing(hub, described, command):
    opened = Zoo.open(str(described))
    with pytest.raises(ZooError, match="zoo fetch pair"):
        opened.weights("base")
    called = command("zoo", "check", described)
    assert called.code == 1
    for part in ("base: hf:own/base", "expert mnist: hf:own/expert_mnist", "images of svhn", "--from FOLDER"):
        assert part in called.err
    assert hub.asked == []


def test_a_fetched_zoo_runs(hub, described, command, tmp_path):
    called = command("zoo", "fetch", described, "--yes")
    assert called.code == 0, called.err
    assert "GB in 5 source(s)" in called.out
    folder = locate_zoo(str(described))
    assert folder == made_folder(described)
    assert (folder / "zoo.yaml").is_file()
    manifest = read_manifest(folder)
    assert manifest.task_table["mnist"].classes[0] == "0"
    base = load_file(folder / "base.safetensors")
    expert = load_file(folder / "experts" / "mnist.safetensors")
    assert torch.equal(expert["visual.proj"], base["visual.proj"])  # the experts' files have none
    before = len(hub.asked)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"zoo": str(described), "calibrators": CALIBRATORS}))
    assert command("preflight", recipe)[0] == 0
    called = command("run", recipe, "-q")
    assert called.code == 0, called.err
    assert "surgery" in called.out
    assert len(hub.asked) == before


def test_a_zoo_fetched_without_images_merges(hub, described, command, tmp_path):
    assert command("zoo", "fetch", described, "--yes", "--no-images")[0] == 0
    before = len(hub.asked)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"zoo": str(described)}))
    called = command("preflight", recipe)
    assert called.code == 0, called.out
    assert "About" in called.out
    called = command("merge", recipe, "--out", tmp_path / "merged.safetensors")
    assert called.code == 0, called.err
    expert = load_file(locate_zoo(str(described)) / "experts" / "mnist.safetensors")
    assert set(load_file(tmp_path / "merged.safetensors")) == set(expert)
    assert len(hub.asked) == before


@pytest.mark.parametrize("form", ["owner/name", "name", "owner--name", "cache"])
def test_a_local_folder_serves_without_a_network(described, tmp_path, form):
    write_files(tmp_path / "raw", tmp_path / "raw_data")
    place = tmp_path / "place"
    for kind, root in (("models", tmp_path / "raw"), ("datasets", tmp_path / "raw_data")):
        for repository in (root / "own").iterdir():
            target = {
                "owner/name": place / "own" / repository.name,
                "name": place / repository.name,
                "owner--name": place / f"own--{repository.name}",
                "cache": place / f"{kind}--own--{repository.name}" / "snapshots" / "main",
            }[form]
            target.parent.mkdir(parents=True, exist_ok=True)
            repository.rename(target)
    found = holding(str(described), [place])
    assert found.missing == []
    folder = make_zoo(found, silent, download=False)
    assert sorted(path.name for path in (folder / "data" / "mnist").iterdir()) == [
        "test-00000-of-00002.parquet",
        "test-00001-of-00002.parquet",
    ]
    assert holding(str(described)) is None


def test_without_a_network_it_is_explained(described, command):
    called = command("zoo", "fetch", described, "--yes")
    assert called.code == 1
    assert called.err.count("cannot be reached") == 1
    said = "put the files into a folder and give it with `--from FOLDER`, or choose it in the lab: own/base/, "
    said += "own/expert_mnist/, own/expert_svhn/ with model.safetensors or pytorch_model.bin, and config.json where "
    said += "there is one; own/mnist/, own/svhn/ with the parquet files of the split 'test'."
    assert called.err.endswith(said + "\n")
    assert "cannot be reached" not in called.out
    assert "Traceback" not in called.err


def test_nothing_is_downloaded_without_a_yes(hub, described, command, monkeypatch):
    monkeypatch.setattr("typer.confirm", lambda *args, **options: False)
    called = command("zoo", "fetch", described)
    assert called.code == 1
    assert "Nothing was downloaded" in called.err
    assert hub.downloads() == []


def test_without_images_a_zoo_can_only_be_merged_and_is_completed_later(hub, described):
    folder = make_zoo(holding(str(described)).without_images(), silent, download=True)
    assert not (folder / "data").exists()
    assert [item.role for item in holding(str(described)).missing] == ["data", "data"]
    folder = make_zoo(holding(str(described)), silent, download=True)
    assert (folder / "data" / "svhn").is_dir()


def test_images_of_some_tasks_are_left_out(hub, described, command):
    called = command("zoo", "fetch", described, "--yes", "--without", "svhn")
    assert called.code == 0, called.err
    assert "images of svhn" not in called.out
    table = read_manifest(locate_zoo(str(described))).task_table
    assert (table["mnist"].data, table["svhn"].data) == ("data/mnist", None)
    called = command("zoo", "fetch", described, "--without", "snhv")
    assert called.code == 1
    assert "Did you mean 'svhn'?" in called.err


def test_published_accuracies_come_with_the_zoo_and_stand_below_a_run(hub, described, command, tmp_path):
    document = yaml.safe_load(described.read_text())
    accuracy = {"pretrained": {"mnist": 10.0}, "expert": {"mnist": 99.0, "svhn": 98.0}}
    described.write_text(yaml.safe_dump({**document, "published": {"source": "Their card", "accuracy": accuracy}}))
    assert command("zoo", "fetch", described, "--yes")[0] == 0
    assert read_manifest(locate_zoo(str(described))).published.accuracy == accuracy
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"zoo": str(described)}))
    called = command("run", recipe, "-q")
    assert called.code == 0, called.err
    assert "Published: Their card" in called.out
    line = next(line for line in called.out.splitlines() if line.startswith("svhn") and "expert" in line)
    published, measured, difference = map(float, line.split()[2:5])
    assert published == 98.0
    assert difference == pytest.approx(measured - published, abs=0.011)
    assert "more than the sample explains" in line


def test_incomplete_shards_count_as_missing(described, tmp_path):
    write_files(tmp_path / "raw", tmp_path / "raw_data")
    (tmp_path / "raw_data/own/mnist/data/test-00001-of-00002.parquet").unlink()
    found = holding(str(described), [tmp_path / "raw", tmp_path / "raw_data"])
    assert [item.label for item in found.missing] == ["images of mnist"]
    with pytest.raises(ZooError, match="Fetch them first: own/mnist/ with the parquet files of the split 'test'"):
        make_zoo(found, silent, download=False)


def test_the_engine_fetches_too(hub, described, tmp_path):
    store = Store(tmp_path / "store")
    plan = plan_fetch(FetchRequest.parse({"zoo": str(described), "download": True}), store)
    folder = run_inline(plan, store)
    assert Path(json.loads((folder / "fetched.json").read_text())["folder"]) == locate_zoo(str(described))
    refused = plan_fetch(FetchRequest.parse({"zoo": str(described)}), store)
    assert refused.steps[0].params.download is False
    with pytest.raises(EngineError, match="cannot be fetched"):
        FetchRequest.parse({})


def test_pickled_checkpoints_of_a_local_folder_with_a_head_for_each_task(tmp_path, command):
    torch.manual_seed(0)
    base = {name: value.clone() for name, value in visual_of(clip()).items()}
    place = tmp_path / "checkpoints" / "ViT-T"
    rows = torch.nn.functional.normalize(torch.randn(10, 16), dim=1)
    write_pickle(place / "zeroshot.pt", base)
    for number, name in enumerate(("MNIST", "SVHN")):
        write_pickle(place / name / "finetuned.pt", moved(base, number + 1))
        write_head(place / f"head_{name}.pt", rows)
    (tmp_path / "tower.json").write_text(json.dumps({**TINY, "quick_gelu": True}))
    document = {
        "format": 1,
        "name": "pickles",
        "backbone": {"architecture": "tower.json", "weights": "local:ViT-T/zeroshot.pt", "quick_gelu": True},
        "experts": [{"name": n, "task": n, "weights": f"local:ViT-T/{n}/finetuned.pt"} for n in ("MNIST", "SVHN")],
        "tasks": [{"name": n, "domain": "in", "dataset": n.lower()} for n in ("MNIST", "SVHN")],
        "heads": "local:ViT-T/head_{task}.pt",
    }
    path = tmp_path / "pickles.yaml"
    path.write_text(yaml.safe_dump(document))
    called = command("zoo", "fetch", path, "--yes")
    assert called.code == 1
    assert "ViT-T/head_MNIST.pt, ViT-T/head_SVHN.pt." in called.err
    called = command("zoo", "fetch", path, "--from", tmp_path / "checkpoints")
    assert called.code == 0, called.err
    folder = locate_zoo(str(path))
    heads = load_file(folder / "heads.safetensors")
    torch.testing.assert_close(heads["MNIST"], rows)
    assert float(heads["logit_scale"].exp()) == pytest.approx(100, rel=1e-4)
    expert = load_file(folder / "experts" / "SVHN.safetensors")
    torch.testing.assert_close(expert["visual.proj"], moved(base, 2)["visual.proj"])
    assert command("zoo", "check", path)[0] == 0


def one_expert(folder, data, *, weights="local:base.safetensors", **task):
    """Return a description of one expert with the data of its task in some place, and the place of its weights."""
    folder.mkdir()
    torch.manual_seed(0)
    base = {name: value.clone() for name, value in visual_of(clip()).items()}
    save_file(base, folder / "base.safetensors")
    save_file(moved(base, 1), folder / "birds.safetensors")
    rows = torch.nn.functional.normalize(torch.randn(3, 16), dim=1)
    save_file({"birds": rows * 100}, folder / "heads.safetensors")
    (folder / "tower.json").write_text(json.dumps({**TINY, "quick_gelu": True}))
    document = {
        "format": 1,
        "name": "one",
        "backbone": {"architecture": "tower.json", "weights": weights, "quick_gelu": True},
        "experts": [{"name": "birds", "task": "birds", "weights": "local:birds.safetensors"}],
        "tasks": [{"name": "birds", "domain": "in", "classes": ["a", "b", "c"], "data": data, **task}],
        "heads": "local:heads.safetensors",
    }
    (folder / "one.yaml").write_text(yaml.safe_dump(document))
    return folder / "one.yaml"


def own_zoo(folder):
    """Return a description of local files with images in its own folder, and that folder."""
    path = one_expert(folder, "data.npz")
    np.savez(folder / "data.npz", test_x=np.zeros((3, 8, 8, 3), np.uint8), test_y=np.arange(3))
    return path, folder


def test_a_zoo_is_made_again_of_files_that_changed(tmp_path):
    path, own = own_zoo(tmp_path / "own")
    folder = make_zoo(holding(str(path), [own]), silent, download=False)
    before = load_file(folder / "experts" / "birds.safetensors")["visual.proj"]
    assert holding(str(path)) is holding(str(path), [own]) is None
    weights = load_file(own / "birds.safetensors")
    save_file({**weights, "visual.proj": weights["visual.proj"] + 1}, own / "birds.safetensors")
    assert holding(str(path)) is None, "nobody has said where the weights are"
    assert make_zoo(holding(str(path), [own]), silent, download=False) == folder
    assert torch.equal(load_file(folder / "experts" / "birds.safetensors")["visual.proj"], before + 1)
    assert holding(str(path), [own]) is None
    np.savez(own / "data.npz", test_x=np.zeros((6, 8, 8, 3), np.uint8), test_y=np.arange(6) % 3)
    make_zoo(holding(str(path), [own]), silent, download=False)
    assert Zoo.open(str(path)).data["birds"].lengths["test"] == 6
    (folder / "build.json").write_text("{}")  # somebody has trained experts here
    np.savez(own / "data.npz", test_x=np.zeros((9, 8, 8, 3), np.uint8), test_y=np.arange(9) % 3)
    assert make_zoo(holding(str(path), [own]), silent, download=False) == folder
    kept = folder.with_name(f"{folder.name}~1")
    assert {place.name for place in folder.parent.iterdir()} == {folder.name, kept.name}
    assert [(place / "build.json").exists() for place in (folder, kept)] == [False, True]


def test_descriptions_of_equal_words_in_two_folders_are_two_zoos(tmp_path, monkeypatch):
    made = {}
    for name, count in (("mine", 3), ("yours", 6)):
        path, own = own_zoo(tmp_path / name)
        np.savez(own / "data.npz", test_x=np.zeros((count, 8, 8, 3), np.uint8), test_y=np.arange(count) % 3)
        assert holding(str(path), [own]) is not None, "nobody has made it of these files"
        made[path] = make_zoo(holding(str(path), [own]), silent, download=False)
    (mine, first), (yours, second) = made.items()
    assert mine.read_bytes() == yours.read_bytes()
    assert first != second
    assert [Zoo.open(str(path)).data["birds"].lengths["test"] for path in (mine, yours)] == [3, 6]
    shutil.copytree(mine.parent, tmp_path / "theirs")  # as a worker may see the first one's folder
    monkeypatch.setenv("MERGELENS_MOUNTS", f"{mine.parent}={tmp_path / 'theirs'}")
    assert made_folder(tmp_path / "theirs" / mine.name) == first


@pytest.mark.parametrize("form", ["npz", "zip", "csv", "tsv", "parquet"])
def test_a_local_file_of_images_of_any_form_is_brought(tmp_path, form):
    path = one_expert(tmp_path / "own", f"local:mine.{form}")
    file = tmp_path / "own" / f"mine.{form}"
    if form == "npz":
        np.savez(file, test_x=np.zeros((3, 8, 8, 3), np.uint8), test_y=np.arange(3))
    elif form == "zip":
        write_zip(file, classes=("a", "b", "c"))
    elif form == "parquet":
        write_parquet(file, [0, 1, 2])
    else:
        (tmp_path / "own" / "pictures").mkdir()
        mark = "," if form == "csv" else "\t"
        lines = [f"path{mark}label", *(f"pictures/{n}.png{mark}{name}" for n, name in enumerate("abc"))]
        file.write_text("\n".join(lines))
        for number in range(3):
            (tmp_path / "own" / "pictures" / f"{number}.png").write_bytes(encoded(picture(number)))
    folder = make_zoo(holding(str(path), [tmp_path / "own"]), silent, download=False)
    data = Zoo.open(str(folder)).data["birds"]
    assert sorted(set(data.labels("test").tolist())) == [0, 1, 2]
    assert data.samples("test", [0]).shape[0] == 1


def test_installed_data_sets_of_a_description_stay_where_they_are(tmp_path, monkeypatch):
    path = one_expert(tmp_path / "own", "torchvision:MNIST", classes=[*"0123456789"])
    heads = {"birds": torch.nn.functional.normalize(torch.randn(10, 16), dim=1) * 100}
    save_file(heads, tmp_path / "own" / "heads.safetensors")
    found = holding(str(path), [tmp_path / "own"])
    assert [item.role for item in found.here] == ["base", "expert", "head"]
    folder = make_zoo(found, silent, download=False)
    assert holding(str(path)) is None
    write_mnist(tmp_path / "sets")
    monkeypatch.setenv("MERGELENS_TORCHVISION", str(tmp_path / "sets"))
    assert Zoo.open(str(folder)).data["birds"].lengths["test"] == 12
    document = yaml.safe_load(path.read_text())
    document["tasks"][0]["root"] = "sets"
    path.with_name("rooted.yaml").write_text(yaml.safe_dump({**document, "name": "rooted"}))
    with pytest.raises(ZooError, match="MERGELENS_TORCHVISION"):
        holding(str(path.with_name("rooted.yaml")))


def test_weights_are_no_data_set(tmp_path):
    path = one_expert(tmp_path / "own", "local:mine.npz", weights="torchvision:MNIST")
    with pytest.raises(ZooError, match=r"'torchvision:MNIST' \(the base\) names images, not weights"):
        holding(str(path))


@pytest.mark.parametrize("source", ["local:../private", "local:{}", "local:a/../../private", "hf:../..", "hf:./own"])
@pytest.mark.parametrize("role", ["expert", "data"])
def test_no_source_leads_out_of_the_folder_it_is_looked_for_in(tmp_path, source, role):
    (tmp_path / "private").mkdir()
    path = one_expert(tmp_path / "own", "local:pictures")
    document = yaml.safe_load(path.read_text())
    entry = document["tasks"][0] if role == "data" else document["experts"][0]
    entry["data" if role == "data" else "weights"] = source.format(tmp_path / "private")
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(ZooError, match=r"leads out of the folder.*local:PATH|names no repository; write hf:OWNER"):
        holding(str(path), [tmp_path / "own"])


def test_no_revision_leads_out_of_a_cache():
    for revision in ("../../../etc/hostname", "..", "/etc/hostname"):
        with pytest.raises(ZooError, match="names no repository"):
            source_of("expert", "birds", f"hf:own/birds@{revision}")
    assert source_of("data", "birds", "hf:own/birds@refs/convert/parquet").revision == "refs/convert/parquet"


@pytest.mark.parametrize(
    ("files", "split", "taken"),
    [
        ("data/test-00000-of-00001 data/test_ood-00000-of-00001 data/train-00000-of-00001", "test", [0]),
        ("validation_matched-0-of-1 validation_mismatched-0-of-1 validation-0-of-1", "validation", [2]),
        ("validation_matched-0-of-1 validation_mismatched-0-of-1", "validation", []),
        ("validation_matched-0-of-1 validation_mismatched-0-of-1", "validation_matched", [0]),
        ("test_images-00000-of-00002 test_images-00001-of-00002 train_images-00000-of-00001", "test", [0, 1]),
        ("test_0 test_1 test_ood_0", "test", [0, 1]),
        ("plain/test/0000 plain/test/0001 plain/test_ood/0000", "test", [0, 1]),
    ],
)
def test_of_a_split_no_longer_name_is_taken_beside_it(files, split, taken):
    names = [f"{name}.parquet" for name in files.split()]
    assert of_split(names, split) == [names[number] for number in taken]
