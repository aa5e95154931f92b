"""A zoo made from another one: the same tasks' experts by several recipes, stopped, gone on with, refused."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
import yaml
from open_clip.model import CLIP
from safetensors.torch import save_file

from engine.catalog import ALIGNMENTS, params_of, row_of
from engine.commands.experiment import _meant_for
from engine.commands.zoo import align_experts_of, finetune_experts_of
from engine.errors import EngineError, RecipeError
from engine.experiments import experiment_names, read_experiment, read_result
from engine.manifest import locate_zoo, read_manifest
from engine.pipeline.zoos import derived
from engine.pipeline.zoos.derived import build_derived, derived_names, read_derived
from engine.store import Store
from tests.pipeline.test_experiment import SPEC
from tests.tiny_zoo import CONFIG, make_zoo


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A zoo with training images and how another one is made from it."""
    zoo = make_zoo(tmp_path / "tiny", experts=("alpha", "beta"))
    for name in ("alpha", "beta"):
        path = zoo / "data" / f"{name}.npz"
        with np.load(path) as found:
            arrays = dict(found.items())
        np.savez(path, **arrays, train_x=arrays["test_x"][:20], train_y=arrays["test_y"][:20])
    document = {
        "format": 1,
        "name": "made",
        "title": "Made",
        "zoo": str(zoo),
        "tasks": ["alpha", "beta"],
        "config": {"steps": 4, "batch_size": 8},
        "experts": [
            {"config": {"method": "standard"}},
            {"called": "twice", "config": {"method": "standard", "steps": 8}},
        ],
    }
    (tmp_path / "derived").mkdir()
    (tmp_path / "derived" / "made.yaml").write_text(yaml.safe_dump(document))
    monkeypatch.setattr(derived, "FOLDER", tmp_path / "derived")
    return document


def build(tmp_path, train=finetune_experts_of, **settings):
    settings |= {"say": print, "progress": lambda *told: None}
    build_derived("made", tmp_path / "out", Store(tmp_path / "store"), train, align_experts_of, **settings)
    return tmp_path / "out"


def test_every_way_of_training_has_an_expert_of_every_task(recipe, tmp_path):
    folder = build(tmp_path, seed=3)
    experts = read_manifest(folder).expert_table
    assert list(experts) == ["alpha", "beta", "alpha-twice", "beta-twice"]
    assert {expert.method for expert in experts.values()} == {"standard", "twice"}
    record = json.loads((folder / "build.json").read_text())
    assert record["derived"]["name"] == "made"
    steps = {name: found["config"]["steps"] for name, found in record["finetuned"].items()}
    assert steps == {"alpha": 4, "beta": 4, "alpha-twice": 8, "beta-twice": 8}
    assert {found["config"]["seed"] for found in record["finetuned"].values()} == {3}


def test_stopped_it_goes_on_with_what_is_missing(recipe, tmp_path):
    asked = []

    def stops(request, store, progress):
        asked.append(request["called"])
        if request["called"]:
            raise KeyboardInterrupt
        finetune_experts_of(request, store, progress)

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, stops)
    build(tmp_path, lambda *given: (asked.append(given[0]["called"]), finetune_experts_of(*given)))
    assert asked == ["", "twice", "twice"]
    assert len(read_manifest(tmp_path / "out").experts) == 4


def test_experts_of_another_base_and_of_teachers_are_made_and_aligned(recipe, tmp_path):
    zoo = tmp_path / "tiny"
    shutil.copytree(zoo, tmp_path / "twin")
    torch.manual_seed(4)
    save_file({n: t.clone() for n, t in CLIP(**CONFIG).state_dict().items()}, tmp_path / "twin" / "base.safetensors")
    orders = [{"called": "kept", "method": "as_it_is"}, {"called": "matched", "method": "weight_matching"}]
    ways = [
        {"config": {"method": "standard"}},
        {"called": "twin", "start": "other", "aligned": orders},
        {"called": "taught", "teacher": {"weight": 0.5}},
    ]
    (tmp_path / "derived" / "made.yaml").write_text(yaml.safe_dump({**recipe, "experts": ways}))
    with pytest.raises(EngineError, match="with --other, such as the twin"):
        build(tmp_path)
    folder = build(tmp_path, other=str(tmp_path / "twin"))
    table = read_manifest(folder).expert_table
    assert {expert.method for expert in table.values()} == {"standard", "twin", "kept", "matched", "taught"}
    assert {name: expert.aligned for name, expert in table.items() if expert.base} == {
        **dict.fromkeys(("alpha-twin", "beta-twin"), ""),
        **dict.fromkeys(("alpha-kept", "beta-kept"), "as_it_is"),
        **dict.fromkeys(("alpha-matched", "beta-matched"), "weight_matching"),
    }
    assert json.loads((folder / "build.json").read_text())["finetuned"]["beta-taught"]["teacher"]["model"] == "beta"
    before = (folder / "zoo.yaml").read_text()
    build(tmp_path, other=str(tmp_path / "twin"))
    assert (folder / "zoo.yaml").read_text() == before, "what is there is not made again"


def test_another_seed_needs_another_folder(recipe, tmp_path):
    folder = build(tmp_path, seed=3)
    before = (folder / "build.json").read_text()
    with pytest.raises(EngineError, match=r"has experts of the seed 3, and .* seed 4 .*new folder, .*--expert-seed 3"):
        build(tmp_path, seed=4)
    assert (folder / "build.json").read_text() == before
    build(tmp_path, seed=3)


def test_another_zoo_is_not_touched(recipe, tmp_path):
    make_zoo(tmp_path / "out")
    with pytest.raises(EngineError, match="holds another zoo"):
        build(tmp_path)


def test_what_cannot_be_made_is_refused(recipe, tmp_path):
    with pytest.raises(RecipeError, match="no zoo 'mad'"):
        read_derived("mad")
    (tmp_path / "derived" / "made.yaml").write_text(yaml.safe_dump({**recipe, "experts": []}))
    with pytest.raises(RecipeError, match="experts"):
        read_derived("made")


@pytest.mark.parametrize("name", derived_names())
def test_those_of_the_app_can_be_asked_for(name, tmp_path):
    wanted = read_derived(name)
    other = str(locate_zoo("mini8")) if wanted.needs_another else ""
    asked = [wanted.requests(tmp_path, trained, 1, other) for trained in wanted.experts]
    ways = [requests[0].method for requests in asked]
    ways += [order.called for trained in wanted.experts for order in trained.aligned]
    assert len(set(ways)) == len(ways) > 1
    assert all({task for request in requests for task in request.tasks} == set(wanted.tasks) for requests in asked)
    for order in (order for trained in wanted.experts for order in trained.aligned):
        params_of(row_of(ALIGNMENTS, order.method, "way to align"), order.params)


def test_what_is_shipped_is_of_the_zoo_that_an_experiment_is_meant_for(recipe, tmp_path, command):
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump({**SPEC, "name": "small", "zoo": "made"}))
    for arguments, message in (
        (("--zoo", recipe["zoo"]), "is shipped as measured on the zoo made, and this is tiny"),
        (("--quick",), "Only whole experiments are shipped"),
        (("--zoo", "mini8-recipes"), "has to be made first: `python -m engine zoo build mini8-recipes --out DIR`"),
    ):
        code, _, error = command("experiment", file, "--ship", "--quiet", *arguments)
        assert code == 1
        assert message in " ".join(error.split())


def test_all_says_which_experiments_are_left_out(capsys):
    wanted = [read_experiment(name) for name in experiment_names()]
    found = {spec.name for spec in _meant_for("mini8")}
    said = capsys.readouterr().out
    for spec in wanted:
        assert (spec.name in found) == (spec.zoo not in derived_names())
        assert (spec.name in found) != bool(re.search(rf"(: |, ){re.escape(spec.name)}[,.]", said))
    assert "`python -m engine zoo build mini8-recipes --out DIR`" in said


def test_sets_of_experts_by_other_seeds_are_judged_as_one(recipe, tmp_path, command):
    (tmp_path / "derived" / "made.yaml").write_text(yaml.safe_dump({**recipe, "experts": recipe["experts"][:1]}))
    build(tmp_path, seed=1)
    (tmp_path / "out").rename(tmp_path / "first")
    build(tmp_path, seed=2)
    spec = {
        **SPEC,
        "name": "small",
        "base": {"merge": {"method": "task_arithmetic", "params": {"scaling": 0.5}}, "experts": ["alpha", "beta"]},
        "points": [{"name": "merged", "title": "Merged"}, {"name": "expert", "title": "Expert", "state": "expert"}],
        "measures": [{"name": "accuracy", "title": "Accuracy", "path": "average.{state}.in"}],
        "checks": [
            {"text": "It costs.", "measure": "accuracy", "left": "merged", "relation": "below", "right": "expert"}
        ],
    }
    file, out = tmp_path / "small.yaml", tmp_path / "result.json"
    file.write_text(yaml.safe_dump(spec))
    first, second = tmp_path / "first", tmp_path / "out"
    code, said, error = command("experiment", file, "--zoo", first, "--also", second, "--out", out, "--quiet")
    assert code == 0, error
    assert "2 sets of experts" in said
    result = read_result(out)
    assert result.sets == 2
    assert [len(point.cells["accuracy"].values) for point in result.points] == [2, 2]
    lower = {"text": "It gains.", "measure": "accuracy", "left": "merged", "relation": "above", "right": "expert"}
    file.write_text(yaml.safe_dump({**spec, "checks": [lower, *spec["checks"]]}))
    again = tmp_path / "again.json"
    code, said, error = command("experiment", file, "--zoo", first, "--judge", out, "--out", again)
    assert code == 0, error
    assert "claim: It gains." in said
    old, new = result.findings[0], read_result(again).findings
    assert [finding.text for finding in new] == ["It gains.", "It costs."]
    assert new[1] == old
    code, _, error = command("experiment", file, "--judge", out)
    assert (code, "was measured on the zoo made, and this is mini8" in " ".join(error.split())) == (1, True)
    code, _, error = command("experiment", file, "--zoo", first, "--judge", out, "--ship")
    assert (code, "is shipped as measured on the zoo mini8" in " ".join(error.split())) == (1, True)
    code, _, error = command("experiment", file, "--zoo", first, "--judge", out, "--quick")
    assert (code, "leave out --also, --quick" in " ".join(error.split())) == (1, True)
    code, _, error = command("experiment", "--judge", out)
    assert (code, "name the experiment of this one" in " ".join(error.split())) == (1, True)
    code, _, error = command("experiment", file, "--zoo", first, "--also", first, "--quiet")
    assert code == 1
    assert "are the same" in error
    shutil.copytree(second, tmp_path / "third")
    path = tmp_path / "third" / "data" / "beta.npz"
    with np.load(path) as found:
        arrays = dict(found.items())
    np.savez(path, **{**arrays, "test_x": arrays["test_x"][::-1]})
    code, _, error = command("experiment", file, "--zoo", first, "--also", tmp_path / "third", "--quiet")
    assert code == 1
    assert "differ in their data of beta" in " ".join(error.split())
