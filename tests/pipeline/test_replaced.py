"""Experts that give way to others in a zoo's folder, and folders that two put experts into at once."""

import fcntl
import os
import shutil

import pytest
import yaml

from engine.errors import ZooError
from engine.manifest import read_manifest
from engine.pipeline.local import align_experts, finetune_experts
from engine.store import Store
from engine.zoo.folder import Zoo
from engine.zoo.making.adopt import adopt, put_aligned
from tests.pipeline.test_other_base import twin, zoo  # noqa: F401

LORA = {"method": "lora", "params": {"rank": 2}}


def request(zoo, **changes):  # noqa: F811
    config = {"steps": 2, "batch_size": 8, **changes.pop("config", {})}
    return {"zoo": str(zoo), "tasks": ["alpha"], "config": config, "replace": True, **changes}


def test_an_entry_says_of_the_new_weights_alone_what_it_says(zoo, tmp_path):  # noqa: F811
    document = yaml.safe_load((zoo / "zoo.yaml").read_text())
    brought = {"weights": "mine.safetensors", "source": "elsewhere", "licence": "MIT", "forward": "linearised"}
    document["experts"][0] |= brought
    (zoo / "experts" / "alpha.safetensors").rename(zoo / "mine.safetensors")
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(document))
    finetune_experts(request(zoo), Store(tmp_path / "store"))
    expert = read_manifest(zoo).expert_table["alpha"]
    assert (expert.weights, expert.licence, expert.forward) == ("mine.safetensors", "", "standard")
    assert "zoo finetune" in expert.source


def test_another_recipe_of_the_same_name_changes_how_an_expert_is_evaluated(zoo, tmp_path):  # noqa: F811
    store, seen = Store(tmp_path / "store"), []
    for config in ({"method": "linearised"}, LORA, {"method": "standard"}):
        finetune_experts(request(zoo, called="mine", config=config), store)
        expert = read_manifest(zoo).expert_table["alpha-mine"]
        seen.append((expert.forward, expert.factors))
    assert seen == [("linearised", None), ("standard", "factors/alpha-mine.safetensors"), ("standard", None)]


def test_a_manifest_that_says_all_of_it_already_stays_as_it_is(zoo, tmp_path):  # noqa: F811
    store = Store(tmp_path / "store")
    finetune_experts(request(zoo), store)
    (zoo / "zoo.yaml").write_text((zoo / "zoo.yaml").read_text() + "# a comment below\n")
    finetune_experts(request(zoo, config={"seed": 1}), store)
    assert (zoo / "zoo.yaml").read_text().endswith("# a comment below\n")


def alone_in(folder, real, done):
    """Carry a change out where nobody else can make one meanwhile."""

    def change(*given, **named):
        handle = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
        done.append(real)
        return real(*given, **named)

    return change


def test_one_after_the_other_changes_a_folder(zoo, twin, tmp_path, monkeypatch):  # noqa: F811
    done, store = [], Store(tmp_path / "store")
    monkeypatch.setattr("engine.zoo.making.adopt.adopt", alone_in(zoo, adopt, done))
    monkeypatch.setattr("engine.pipeline.zoos.align.put_aligned", alone_in(zoo, put_aligned, done))
    finetune_experts(request(zoo, start={"zoo": str(twin)}), store)
    align_experts({"zoo": str(zoo)}, store)
    assert done == [adopt, put_aligned]


def edited(zoo, change):  # noqa: F811
    """Change a zoo's manifest as a person would; returns the zoo."""
    document = yaml.safe_load((zoo / "zoo.yaml").read_text())
    change(document)
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return Zoo.open(str(zoo))


def training(folder, source, *, factors=False, **record):
    """Return the folder of a training that left some weights, and its record."""
    folder.mkdir()
    for name in ("expert.safetensors", *(["factors.safetensors"] * factors)):
        shutil.copy(source, folder / name)
    return folder, {"config": {"method": "standard"}, **record}


def test_an_expert_that_was_renamed_keeps_its_files(zoo, tmp_path):  # noqa: F811
    trained = training(tmp_path / "trained", zoo / "experts" / "beta.safetensors", factors=True)
    first = (zoo / "experts" / "alpha.safetensors").read_bytes()
    adopt(Zoo.open(str(zoo)), {"alpha": trained}, called="mine")
    old = {"alpha": ("old", "long"), "alpha-mine": ("older", "longer")}

    def rename(document):
        for entry in document["experts"]:
            entry["name"], entry["method"] = old.get(entry["name"], (entry["name"], "standard"))

    opened = edited(zoo, rename)
    before = {path: path.read_bytes() for path in zoo.rglob("*.safetensors")}
    adopt(opened, {"alpha": trained})
    adopt(opened, {"alpha": trained}, called="mine")
    adopt(opened, {"alpha": trained}, replace=True)
    assert all(path.read_bytes() == content for path, content in before.items())
    table = read_manifest(zoo).expert_table
    assert [table[name].weights for name in ("old", "alpha", "alpha-mine")] == [
        "experts/alpha.safetensors",
        "experts/alpha~2.safetensors",
        "experts/alpha-mine~2.safetensors",
    ]
    assert table["alpha-mine"].factors == "factors/alpha-mine~2.safetensors"
    assert (zoo / table["alpha"].weights).read_bytes() == (trained[0] / "expert.safetensors").read_bytes() != first


def test_weights_that_another_entry_shares_do_not_give_way(zoo, tmp_path):  # noqa: F811
    trained = training(tmp_path / "trained", zoo / "experts" / "beta.safetensors")
    base = (zoo / "base.safetensors").read_bytes()
    opened = edited(zoo, lambda document: document["experts"][0].update(weights="base.safetensors"))
    adopt(opened, {"alpha": trained}, replace=True)
    assert (zoo / "base.safetensors").read_bytes() == base
    assert read_manifest(zoo).expert_table["alpha"].weights == "base~2.safetensors"


def test_a_jointly_trained_model_takes_no_experts_file(zoo, tmp_path):  # noqa: F811
    trained = training(tmp_path / "trained", zoo / "experts" / "beta.safetensors", joint=["alpha", "beta"])
    (zoo / "experts" / "alpha.safetensors").rename(zoo / "multitask.safetensors")
    expert = (zoo / "multitask.safetensors").read_bytes()
    opened = edited(zoo, lambda document: document["experts"][0].update(weights="multitask.safetensors"))
    for replace in (False, True):
        adopt(opened, {"multitask": trained}, replace=replace)
    assert (zoo / "multitask.safetensors").read_bytes() == expert
    (reference,) = read_manifest(zoo).references
    assert reference.weights == "multitask~2.safetensors"
    (zoo / reference.weights).rename(zoo / "multitask.pt")
    opened = edited(zoo, lambda document: document["references"][0].update(weights="multitask.pt"))
    with pytest.raises(ZooError, match=r"only \.safetensors files are replaced"):
        adopt(opened, {"multitask": trained}, replace=True)


def test_an_aligned_expert_that_was_renamed_keeps_its_file(zoo, tmp_path):  # noqa: F811
    files = {"alpha": zoo / "experts" / "beta.safetensors"}
    put_aligned(Zoo.open(str(zoo)), files, {"alpha": "alpha"}, "weight_matching")
    old = (zoo / "aligned" / "alpha.safetensors").read_bytes()
    opened = edited(zoo, lambda document: document["experts"][0].update(name="old", method="long"))
    adopt(opened, {"alpha": training(tmp_path / "trained", zoo / "experts" / "beta.safetensors")})
    for _ in range(2):
        put_aligned(opened, {"alpha": zoo / "base.safetensors"}, {"alpha": "alpha"}, "weight_matching")
    assert (zoo / "aligned" / "alpha.safetensors").read_bytes() == old
    assert read_manifest(zoo).expert_table["alpha"].weights == "aligned/alpha~2.safetensors"


def test_comments_above_the_first_key_stay_also_below_an_empty_line(zoo, tmp_path):  # noqa: F811
    header = "# Licence: CC-BY.\n\n# Not to be published.\n"
    (zoo / "zoo.yaml").write_text(header + (zoo / "zoo.yaml").read_text())
    trained = training(tmp_path / "trained", zoo / "experts" / "beta.safetensors")
    adopt(Zoo.open(str(zoo)), {"alpha": trained}, called="mine")
    assert (zoo / "zoo.yaml").read_text().startswith(f"{header}format: 1\n")
