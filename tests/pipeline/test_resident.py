"""A zoo that a worker keeps in memory is told from the same one after it changed."""

import json

import numpy as np
import pytest
import yaml
from safetensors.torch import load_file, save_file

from engine.pipeline.executor import run_inline
from engine.pipeline.planners import plan_request
from engine.pipeline.preview import resident
from engine.pipeline.preview.request import preview_request
from engine.pipeline.sources import Sources
from engine.pipeline.views.film import FILM
from engine.store import Store
from tests.pipeline.test_preview import preview, scaled
from tests.tiny_zoo import make_zoo, write_task


@pytest.fixture
def keeper(monkeypatch):
    """A worker's memory of its own, for previews and frames."""
    made = resident.Keeper()
    for module in ("measure", "frames"):
        monkeypatch.setattr(f"engine.pipeline.preview.{module}.KEEPER", made)
    yield made
    made.give_back()


@pytest.fixture
def own_store(tmp_path):
    return Store(tmp_path / "own")


def swap_experts(zoo):
    """Let two experts change their tasks, in the manifest alone."""
    document = yaml.safe_load((zoo / "zoo.yaml").read_text())
    first, second = document["experts"][:2]
    first["task"], second["task"] = second["task"], first["task"]
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(document))


def other_images(zoo):
    write_task(zoo / "data" / "alpha.npz", 77, 24)


def other_heads(zoo):
    file = zoo / "heads.safetensors"
    save_file({name: tensor.flip(0) if tensor.ndim else tensor for name, tensor in load_file(file).items()}, file)


def other_classes(zoo):
    document = yaml.safe_load((zoo / "zoo.yaml").read_text())
    document["tasks"][0]["classes"] = ["star", "square", "circle"]
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(document))


def other_preparation(zoo):
    document = yaml.safe_load((zoo / "zoo.yaml").read_text())
    document["backbone"]["preprocess"]["mean"] = [0.1, 0.2, 0.3]
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(document))


def other_architecture(zoo):
    document = json.loads((zoo / "config.json").read_text())
    document["vision_cfg"]["head_width"] = 8
    (zoo / "config.json").write_text(json.dumps(document))


CHANGES = [swap_experts, other_images, other_heads, other_classes, other_preparation, other_architecture]


@pytest.mark.parametrize("change", CHANGES)
def test_a_zoo_that_changed_is_previewed_and_filmed_as_it_is_now(tmp_path, own_store, keeper, change):
    """Also within the minutes in which a worker has it as it was: keys of what is left name what it is now."""
    zoo = make_zoo(tmp_path / "zoo")

    def left(store, *scalings):
        document, arrays = preview(store, preview_request(scaled(zoo, scalings[0]), scaled(zoo, 0.3)))
        film = FILM.ask(scaled(zoo, scalings[0]), values=scalings).model_dump(mode="json")
        folder = run_inline(plan_request(FILM.name, film, store), store)
        seen = json.loads((folder / "film.json").read_text())
        return document["tasks"], arrays, seen["accuracy"]

    left(own_store, 0.5, 0.7)
    kept = keeper._kept[1]
    change(zoo)
    tasks, arrays, accuracy = left(own_store, 0.6, 0.8)
    assert keeper._kept[1] is not kept
    keeper.give_back()
    expected = left(Store(tmp_path / "other"), 0.6, 0.8)
    assert (tasks, accuracy) == (expected[0], expected[2])
    assert all(np.array_equal(values, expected[1][name]) for name, values in arrays.items())


def test_an_encoder_of_another_configuration_is_another_one(zoo, keeper):
    config = json.loads((zoo / "config.json").read_text())
    kept = keeper.take(Sources(zoo=str(zoo)), {})
    first = kept.encoder(config)
    assert kept.encoder(dict(config)) is first
    assert kept.encoder({**config, "quick_gelu": True}) is not first
