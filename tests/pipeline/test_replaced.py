"""Experts that give way to others in a zoo's folder, and folders that two put experts into at once."""

import fcntl
import os

import pytest
import yaml

from engine.manifest import read_manifest
from engine.pipeline.local import align_experts, finetune_experts
from engine.store import Store
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
