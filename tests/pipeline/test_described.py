"""Described zoos: listed with sizes, found in folders and caches, downloaded, converted, given heads, and run."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from open_clip.model import CLIP
from PIL import Image
from safetensors.torch import load_file, save_file

from engine.__main__ import main
from engine.catalog.datasets import dataset_names
from engine.errors import Cancelled, EngineError, ZooError
from engine.manifest import known_zoos, locate_zoo, made_folder, read_manifest
from engine.pipeline.executor import run_inline
from engine.pipeline.zoos.fetch import FetchRequest, plan_fetch
from engine.store import Store
from engine.weights import Memory
from engine.weights.huggingface import ToHuggingFace, huggingface_config
from engine.zoo.described.fetch import download, list_remote, of_tag
from engine.zoo.described.make import holding, make_zoo
from engine.zoo.described.sources import Wanted, source_of
from engine.zoo.folder import Zoo
from engine.zoo.images.data import read_source
from tests.fake_hub import FakeHub
from tests.made_checkpoints import clip, moved, visual_of, write_head, write_pickle
from tests.tiny_zoo import CONFIG as TINY

CONFIG = {
    "embed_dim": 16,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 16, "patch_size": 8, "width": 64, "layers": 1, "head_width": 64, "mlp_ratio": 4.0},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 1, "layers": 1},
}
TASKS = ("mnist", "svhn")
CALIBRATORS = [{"method": "surgery", "params": {"steps": 5, "batch_size": 4}}]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MERGELENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("MERGELENS_STORE", str(tmp_path / "store"))
    return tmp_path / "cache"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with a base in open_clip's form, two experts in Hugging Face's, and images in parquet."""
    fake = FakeHub(tmp_path / "hub")
    monkeypatch.setenv("HF_ENDPOINT", fake.url)
    write_files(tmp_path / "hub" / "models", tmp_path / "hub" / "datasets")
    yield fake
    fake.close()


def write_files(models: Path, data: Path) -> None:
    torch.manual_seed(0)
    base = {name: value.clone() for name, value in CLIP(**CONFIG).state_dict().items()}
    (models / "own" / "base").mkdir(parents=True)
    save_file(base, models / "own" / "base" / "open_clip_model.safetensors")
    for number, name in enumerate(TASKS):
        torch.manual_seed(number + 1)
        visual = {n: v + 0.01 * torch.randn_like(v) for n, v in base.items() if n.startswith("visual.")}
        view = ToHuggingFace(Memory(visual))
        kept = {n: view.tensor(n) for n in view.names if n != "visual_projection.weight"}
        folder = models / "own" / f"expert_{name}"
        folder.mkdir(parents=True)
        save_file(kept, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(huggingface_config(CONFIG, 256)))
        write_images(data / "own" / name / "data", number)


def write_images(folder: Path, seed: int) -> None:
    """Two shards of the test split and one of another, in the hub's image layout."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)

    def image() -> dict:
        stream = io.BytesIO()
        Image.fromarray(random.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(stream, "PNG")
        return {"bytes": stream.getvalue(), "path": None}

    for name, count in (("test-00000-of-00002", 10), ("test-00001-of-00002", 10), ("train-00000-of-00001", 5)):
        table = pa.table({"image": [image() for _ in range(count)], "label": [i % 10 for i in range(count)]})
        pq.write_table(table, folder / f"{name}.parquet")


@pytest.fixture
def described(tmp_path):
    """A description that names them."""
    folder = tmp_path / "own descriptions"
    folder.mkdir()
    (folder / "tower.json").write_text(json.dumps(CONFIG))
    document = {
        "format": 1,
        "name": "pair",
        "title": "Two experts",
        "backbone": {"architecture": "tower.json", "weights": "hf:own/base", "quick_gelu": True},
        "experts": [{"name": name, "task": name, "weights": f"hf:own/expert_{name}"} for name in TASKS],
        "tasks": [{"name": n, "domain": "in", "dataset": n, "data": f"hf:own/{n}"} for n in TASKS],
    }
    path = folder / "pair.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def silent(fraction, message=""):
    """Nobody listens."""


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
            assert {task.dataset for task in found.manifest.tasks} <= set(dataset_names())
        else:
            assert found is None


def test_opening_downloads_nothing_and_says_what_is_missing(hub, described, command):
    opened = Zoo.open(str(described))
    with pytest.raises(ZooError, match="zoo fetch pair"):
        opened.weights("base")
    code, printed = command("zoo", "check", described)
    assert code == 1
    for part in ("base: hf:own/base", "expert mnist: hf:own/expert_mnist", "images of svhn", "--from FOLDER"):
        assert part in printed.err
    assert hub.asked == []


def test_a_fetched_zoo_runs(hub, described, command, tmp_path):
    code, printed = command("zoo", "fetch", described, "--yes")
    assert code == 0, printed.err
    assert "GB in 5 source(s)" in printed.out
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
    code, printed = command("run", recipe, "-q")
    assert code == 0, printed.err
    assert "surgery" in printed.out
    assert len(hub.asked) == before


def test_a_zoo_fetched_without_images_merges(hub, described, command, tmp_path):
    assert command("zoo", "fetch", described, "--yes", "--no-images")[0] == 0
    before = len(hub.asked)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"zoo": str(described)}))
    code, printed = command("preflight", recipe)
    assert code == 0, printed.out
    assert "About" in printed.out
    code, printed = command("merge", recipe, "--out", tmp_path / "merged.safetensors")
    assert code == 0, printed.err
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
    code, printed = command("zoo", "fetch", described, "--yes")
    assert code == 1
    assert printed.err.count("cannot be reached") == 1
    said = "put the files into a folder and give it with `--from FOLDER`, or choose it in the lab: own/base/, "
    said += "own/expert_mnist/, own/expert_svhn/ with model.safetensors or pytorch_model.bin, and config.json where "
    said += "there is one; own/mnist/, own/svhn/ with the parquet files of the split 'test'."
    assert printed.err.endswith(said + "\n")
    assert "cannot be reached" not in printed.out
    assert "Traceback" not in printed.err


def test_nothing_is_downloaded_without_a_yes(hub, described, command, monkeypatch):
    monkeypatch.setattr("typer.confirm", lambda *args, **options: False)
    code, printed = command("zoo", "fetch", described)
    assert code == 1
    assert "Nothing was downloaded" in printed.err
    assert hub.downloads() == []


def test_without_images_a_zoo_can_only_be_merged_and_is_completed_later(hub, described):
    folder = make_zoo(holding(str(described)).without_images(), silent, download=True)
    assert not (folder / "data").exists()
    assert [item.role for item in holding(str(described)).missing] == ["data", "data"]
    folder = make_zoo(holding(str(described)), silent, download=True)
    assert (folder / "data" / "svhn").is_dir()


def test_images_of_some_tasks_are_left_out(hub, described, command):
    code, printed = command("zoo", "fetch", described, "--yes", "--without", "svhn")
    assert code == 0, printed.err
    assert "images of svhn" not in printed.out
    table = read_manifest(locate_zoo(str(described))).task_table
    assert (table["mnist"].data, table["svhn"].data) == ("data/mnist", None)
    code, printed = command("zoo", "fetch", described, "--without", "snhv")
    assert code == 1
    assert "Did you mean 'svhn'?" in printed.err


def test_published_accuracies_come_with_the_zoo_and_stand_below_a_run(hub, described, command, tmp_path):
    document = yaml.safe_load(described.read_text())
    accuracy = {"pretrained": {"mnist": 10.0}, "expert": {"mnist": 99.0, "svhn": 98.0}}
    described.write_text(yaml.safe_dump({**document, "published": {"source": "Their card", "accuracy": accuracy}}))
    assert command("zoo", "fetch", described, "--yes")[0] == 0
    assert read_manifest(locate_zoo(str(described))).published.accuracy == accuracy
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"zoo": str(described)}))
    code, printed = command("run", recipe, "-q")
    assert code == 0, printed.err
    assert "Published: Their card" in printed.out
    line = next(line for line in printed.out.splitlines() if line.startswith("svhn") and "expert" in line)
    published, measured, difference = map(float, line.split()[2:5])
    assert published == 98.0
    assert difference == pytest.approx(measured - published, abs=0.011)
    assert "more than the sample explains" in line


def test_columns_of_webdataset_are_read(hub):
    """They are named after the members of its archives."""
    folder = hub.root / "datasets" / "own" / "wds" / "default" / "test"
    folder.mkdir(parents=True)
    stream = io.BytesIO()
    Image.new("RGB", (16, 16), "red").save(stream, "JPEG")
    image = {"bytes": stream.getvalue(), "path": "a.jpg"}
    columns = {"cls": [3, 1], "jpg": [image, image], "__key__": ["a", "b"], "__url__": ["x", "x"]}
    pq.write_table(pa.table(columns), folder / "0000.parquet")
    (files,) = download(list_remote(source_of("data", "faces", "hf:own/wds")), silent)
    source = read_source(files)
    assert source.labels("test").tolist() == [3, 1]
    assert source.encoded("test", 0) == stream.getvalue()


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (("pytorch_model.bin", "model.safetensors", "config.json"), ["model.safetensors", "config.json"]),
        (("pytorch_model.bin", "config.json", "training_args.bin"), ["pytorch_model.bin", "config.json"]),
    ],
)
def test_of_two_forms_of_weights_the_safer_is_taken(hub, names, taken):
    folder = hub.root / "models" / "own" / "both"
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_bytes(b"{}")
    assert [file.name for file in list_remote(source_of("expert", "", "hf:own/both")).files] == taken


def test_a_broken_download_is_taken_up_where_it_stopped(hub, described, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)
    item = next(item for item in holding(str(described)).missing if item.role == "base")
    hub.cut_after = 100_000
    (path,) = download(list_remote(item), silent)
    assert path.read_bytes() == (hub.root / "models/own/base/open_clip_model.safetensors").read_bytes()
    assert any(text.startswith("bytes=") and text != "bytes=0-" for text in hub.ranges)


def test_a_download_can_be_cancelled_and_is_resumed(hub, described):
    item = next(item for item in holding(str(described)).missing if item.role == "base")

    def stop(fraction, message=""):
        raise Cancelled("Cancelled.")

    with pytest.raises(Cancelled):
        download(list_remote(item), stop)
    assert holding(str(described)).here[item] == ()
    assert download(list_remote(item), silent)


def test_a_file_that_is_not_what_was_announced_is_refused(hub, described):
    hub.lie = True
    item = next(item for item in holding(str(described)).missing if item.role == "expert")
    with pytest.raises(ZooError, match="was announced"):
        download(list_remote(item), silent)
    assert holding(str(described)).here[item] == ()


def test_a_missing_repository_and_a_missing_split_are_named(hub, described):
    document = yaml.safe_load(described.read_text())
    document["experts"][0]["weights"] = "hf:own/nothing"
    document["tasks"][0]["data"] = "hf:own/expert_mnist"
    described.write_text(yaml.safe_dump(document))
    missing = holding(str(described)).missing
    with pytest.raises(ZooError, match="has no model own/nothing"):
        list_remote(missing[1])
    document["backbone"]["weights"] = "hf:../../etc:passwd"
    described.write_text(yaml.safe_dump(document))
    with pytest.raises(ZooError, match="names no repository"):
        holding(str(described))


def test_a_tag_of_open_clip_is_looked_up_in_its_list():
    item = of_tag(Wanted("base", "base", "openai", "tag"), "ViT-B-32")
    assert (item.scheme, item.repository) == ("hub", "timm/vit_base_patch32_clip_224.openai")
    with pytest.raises(ZooError, match=r"It has: .*openai"):
        of_tag(Wanted("base", "base", "opanai", "tag"), "ViT-B-32")


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


@pytest.fixture
def command(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["mergelens", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        return stopped.value.code or 0, capsys.readouterr()

    return call


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
    code, printed = command("zoo", "fetch", path, "--yes")
    assert code == 1
    assert "ViT-T/head_MNIST.pt, ViT-T/head_SVHN.pt." in printed.err
    code, printed = command("zoo", "fetch", path, "--from", tmp_path / "checkpoints")
    assert code == 0, printed.err
    folder = locate_zoo(str(path))
    heads = load_file(folder / "heads.safetensors")
    torch.testing.assert_close(heads["MNIST"], rows)
    assert float(heads["logit_scale"].exp()) == pytest.approx(100, rel=1e-4)
    expert = load_file(folder / "experts" / "SVHN.safetensors")
    torch.testing.assert_close(expert["visual.proj"], moved(base, 2)["visual.proj"])
    assert command("zoo", "check", path)[0] == 0
