"""Keys of merges, features and cached quantities name all that their results depend on."""

import json
from dataclasses import replace

import pytest
import torch
import yaml

from engine.pipeline.local import run_recipe
from engine.pipeline.rates import known_rates
from engine.pipeline.run.encoding import encoder_for
from engine.pipeline.run.plan import steps_of
from engine.recipe import parse_recipe
from engine.store import Store
from engine.weights import open_weights
from engine.zoo.folder import Zoo
from tests.tiny_text_zoo import make_text_zoo
from tests.tiny_zoo import make_zoo


def merged(zoo, store, merge, **changes):
    """Return the merged weights of a run."""
    recipe = parse_recipe({"zoo": str(zoo), "merge": merge, "calibrators": [], **changes})
    run_recipe(recipe, store)
    run = steps_of(recipe, store)
    weights = open_weights(store.find(run.merge(0)) / "merged.safetensors")
    return torch.cat([weights.tensor(name).flatten() for name in weights.names])


@pytest.mark.parametrize("method", ["fisher", "regmean"])
def test_what_is_cached_of_images_is_of_those_images(zoo, tmp_path, method):
    call = {"method": method, "params": {"examples": 8}}
    probes = [{"samples_per_task": 12, "split_seed": 0}, {"samples_per_task": 12, "split_seed": 1}]
    one = Store(tmp_path / "one")
    first, second = (merged(zoo, one, call, probe=probe) for probe in probes)
    alone = merged(zoo, Store(tmp_path / "other"), call, probe=probes[1])
    assert torch.equal(second, alone)
    assert not torch.equal(first, second)


def test_what_is_aligned_with_others_is_not_kept_for_one_expert(zoo, tmp_path):
    call = {"method": "knots", "params": {"merge": "ties_sum", "density": 0.3}}
    one = Store(tmp_path / "one")
    merged(zoo, one, call, experts=["alpha", "beta"])
    assert torch.equal(
        merged(zoo, one, call, experts=["alpha", "gamma"]),
        merged(zoo, Store(tmp_path / "other"), call, experts=["alpha", "gamma"]),
    )


def keys(folder, store, **changes):
    run = steps_of(parse_recipe({"zoo": str(folder), **changes}), store)
    task = run.zoo.manifest.tasks[0]
    return run.merge(0), run.features("base", task, adapt=False)


def edited(folder, change):
    document = yaml.safe_load((folder / "zoo.yaml").read_text())
    change(document)
    (folder / "zoo.yaml").write_text(yaml.safe_dump(document))


def exchange(document):
    first, second = document["experts"][:2]
    first["task"], second["task"] = second["task"], first["task"]


@pytest.mark.parametrize(
    ("merge", "moves"),
    [("task_arithmetic", False), ("regmean", True), ("adamerging", True), ("emr", True)],
)
def test_a_merge_names_the_tasks_of_its_experts_where_they_matter(tmp_path, store, merge, moves):
    folder = make_zoo(tmp_path / "tiny")
    before = keys(folder, store, merge={"method": merge})
    edited(folder, exchange)
    after = keys(folder, store, merge={"method": merge})
    assert (before[0] != after[0]) is moves
    assert before[1] == after[1]


@pytest.mark.parametrize(("merge", "moves"), [("task_arithmetic", False), ("regmean", True)])
def test_a_merge_that_looks_at_images_names_their_preparation(tmp_path, store, merge, moves):
    folder = make_zoo(tmp_path / "tiny")
    before = keys(folder, store, merge={"method": merge})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "preprocess_cfg": {"mean": [0.1, 0.2, 0.3]}}))
    after = keys(folder, store, merge={"method": merge})
    assert (before[0] != after[0]) is moves
    assert before[1] != after[1]


def test_features_name_what_the_manifest_says_of_texts(tmp_path, store):
    folder = make_text_zoo(tmp_path / "texts")
    before = Zoo.open(str(folder)).data
    plain = {name: data.identity(store.digest_file) for name, data in before.items()}
    first = next(iter(before))
    edited(folder, lambda document: document["tasks"][0].update({"prompt": "say: {text}"}))
    prompted = Zoo.open(str(folder)).data[first].identity(store.digest_file)
    edited(folder, lambda document: document["tasks"][0].update({"prompt": "tell: {text}"}))
    again = Zoo.open(str(folder)).data[first].identity(store.digest_file)
    edited(folder, lambda document: document["tasks"][0].update({"prompt": "", "corrupt": "skip"}))
    skipped = Zoo.open(str(folder)).data[first].identity(store.digest_file)
    assert len({plain[first], prompted, again, skipped}) == 4
    assert plain[first] == before[first].digest(store.digest_file), "the content alone, where nothing else decides"


def test_an_encoder_is_kept_for_its_architecture_alone(zoo, tmp_path):
    """A process that has encoded with a zoo sees that its config was corrected."""
    run = steps_of(parse_recipe({"zoo": str(zoo)}), Store(tmp_path / "store"))
    step = run.steps[run.features("base", run.zoo.manifest.tasks[0], adapt=False)]
    pixels = torch.rand(2, 3, *(2 * [step.params.preprocess.extent]), generator=torch.Generator().manual_seed(0))
    found = []
    for quick in (False, True):
        config = {**step.params.architecture, "quick_gelu": quick}
        params = step.params.model_copy(update={"architecture": config})
        with torch.no_grad():
            found.append(encoder_for(Zoo.open(str(zoo)), step.inputs, params)(pixels))
    assert not torch.allclose(*found)


def test_a_task_whose_answers_are_declared_numbers_is_another(tmp_path):
    folder = make_text_zoo(tmp_path / "zoo")
    manifest = yaml.safe_load((folder / "zoo.yaml").read_text())
    task = Zoo.open(str(folder)).data[manifest["tasks"][0]["name"]]
    digest = Store(tmp_path / "store").digest_file
    graded = replace(task, task=task.task.model_copy(update={"grades": (0.0, 1.0)}))
    assert graded.identity(digest) != task.identity(digest)


def test_a_moment_of_little_memory_is_not_remembered(zoo, tmp_path, monkeypatch):
    store, recipe = Store(tmp_path / "store"), parse_recipe({"zoo": str(zoo)})
    monkeypatch.setattr("engine.features.batches._fitting", lambda each, device: 1)
    run_recipe(recipe, store)
    assert not known_rates(store).batches
