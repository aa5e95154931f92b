"""Text encoders whose features are the residual stream: it is matched, and the classifier that reads it moves along."""

from shutil import copytree

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from engine.alignment.symmetry import permuted, random_permutations
from engine.alignment.transformer import RESIDUAL, transformer_symmetry
from engine.manifest import read_manifest
from engine.pipeline.local import align_experts, make_view, run_recipe
from engine.pipeline.views import view_of
from engine.recipe import parse_recipe
from engine.zoo.check import check_zoo
from engine.zoo.encoders.backbone import architecture, prefix_of
from engine.zoo.encoders.heads import DENSE
from engine.zoo.folder import Zoo
from tests.pipeline.test_finetune_texts import imported
from tests.pipeline.test_text_import import silent

KINDS = ("roberta", "distilbert")
PATHS = [(kind, "weight_matching") for kind in KINDS] + [("roberta", "sinkhorn"), ("distilbert", "activation_matching")]


@pytest.fixture(scope="module")
def brought(tmp_path_factory):
    """Zoos of published classifiers by family, not to be changed."""
    return {kind: imported(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


@pytest.fixture(params=KINDS)
def shuffled(request, brought, tmp_path):
    """A zoo of which one expert, its base and its classifier have their units in another order, and what they were."""
    folder = copytree(brought[request.param], tmp_path / "zoo")
    opened = Zoo.open(str(folder))
    config = architecture(opened.folder, opened.manifest)
    symmetry, prefix = transformer_symmetry(config), prefix_of(config)
    expert, heads = opened.manifest.expert_table["nouns"], load_file(folder / "heads.safetensors")
    wanted = load_file(folder / expert.weights)
    orders = None
    for source, target in ((expert.weights, expert.weights), (opened.manifest.backbone.weights, "theirs.safetensors")):
        own = {name.removeprefix(prefix): tensor for name, tensor in load_file(folder / source).items()}
        orders = orders or random_permutations(symmetry, own, 3)
        moved = permuted(own, symmetry, orders)
        save_file({prefix + name: tensor.contiguous() for name, tensor in moved.items()}, folder / target)
    metadata = dict(opened_header(folder / "heads.safetensors"))
    name = f"nouns{DENSE}"
    save_file({**heads, name: heads[name][:, orders[RESIDUAL]].contiguous()}, folder / "heads.safetensors", metadata)
    with_expert(folder, "nouns", base="theirs.safetensors")
    return folder, wanted, heads


def opened_header(path):
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return file.metadata()


def with_expert(folder, name, **changes):
    document = yaml.safe_load((folder / "zoo.yaml").read_text())
    next(entry for entry in document["experts"] if entry["name"] == name).update(changes)
    (folder / "zoo.yaml").write_text(yaml.safe_dump(document))


def test_the_stream_is_found_again_and_the_classifier_moves_with_it(shuffled, store):
    folder, wanted, heads = shuffled
    before = run_recipe(parse_recipe({"zoo": str(folder), "experts": ["answers"]}), store)
    shuffled_heads = (folder / "heads.safetensors").read_bytes()
    record = align_experts({"zoo": str(folder), "method": "weight_matching"}, store)["nouns"]
    assert record["moved"][RESIDUAL] > 0
    assert record["apart"] < 1e-10
    assert record["classifier"]
    manifest = read_manifest(folder)
    found = load_file(folder / manifest.expert_table["nouns"].weights)
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    assert manifest.heads.startswith("aligned/heads-")
    again = load_file(folder / manifest.heads)
    assert again.keys() == heads.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in heads.items())
    assert (folder / "heads.safetensors").read_bytes() == shuffled_heads, "what there was stays"
    assert opened_header(folder / manifest.heads) == opened_header(folder / "heads.safetensors")
    check_zoo(str(folder), silent)
    report = run_recipe(parse_recipe({"zoo": str(folder)}), store)
    assert report.accuracy["expert"]["answers"] == before.accuracy["expert"]["answers"]


def test_a_head_that_others_read_too_keeps_the_order_of_the_stream(shuffled, store):
    folder, *_ = shuffled
    heads = (folder / "heads.safetensors").read_bytes()
    for change, called in (({}, "copy"), ({"task": "nouns", "method": "other"}, "")):
        with_expert(folder, "answers", **change)
        asked = {"method": "random_order", "params": {"seed": 1}, "experts": ["nouns"], "called": called}
        (record,) = align_experts({"zoo": str(folder), **asked}, store).values()
        assert not record["classifier"]
        assert RESIDUAL not in record["moved"]
        assert record["moved"]["units_0"] > 0
        assert record["apart"] < 1e-10
        assert (read_manifest(folder).heads, (folder / "heads.safetensors").read_bytes()) == (
            "heads.safetensors",
            heads,
        )


@pytest.mark.parametrize(("kind", "method"), PATHS)
def test_a_shuffle_that_moves_features_leaves_both_ends_what_they_compute(kind, method, brought, store):
    view, recipe = view_of("connection"), parse_recipe({"zoo": str(brought[kind])})
    params = {"steps": 3} if method == "sinkhorn" else {}
    asked = {"start": "nouns", "end": "answers", "points": 3, "images": 12, "method": method, "params": params}
    shuffled, plain = (
        view.read(make_view(view, view.ask(recipe, **asked, shuffle=shuffle), store)) for shuffle in (True, False)
    )
    units = shuffled["units"]
    assert units["apart"] < 1e-10
    assert set(units["features"]) == {"aligned.safetensors", "end.safetensors"}
    for task in ("nouns", "answers"):
        first, second = shuffled["tasks"][task], plain["tasks"][task]
        for path in ("plain", "aligned"):
            assert first[path]["loss"][0] == pytest.approx(second[path]["loss"][0], rel=1e-5), "the start is the same"
            assert first[path]["loss"][-1] == pytest.approx(second[path]["loss"][-1], rel=1e-5), "the end computes it"
        assert first["plain"]["loss"][1] != pytest.approx(second["plain"]["loss"][1], rel=1e-4)
        if method == "weight_matching":
            assert min(units["found"].values()) > 0.8
            assert first["aligned"]["loss"][1] == pytest.approx(second["aligned"]["loss"][1], rel=0.2)
