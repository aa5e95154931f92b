"""Commands do what they promise: checks and runs, options, files' modes, names of heads, what is kept."""

import json
import os
import shutil
import stat

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from engine.errors import ZooError
from engine.manifest import read_manifest
from engine.pipeline.export.card import model_card
from engine.pipeline.preflight.estimate import estimate, gather
from engine.pipeline.rates import Rates
from engine.recipe import parse_recipe
from engine.report import read_report
from engine.store import Store
from engine.zoo.encoders.heads import HEADS_KEY
from engine.zoo.folder import Zoo
from engine.zoo.images.config import preprocessing, prompt_flops
from tests import foreign
from tests.image_files import write_zip
from tests.made_imports import ask, silent
from tests.tiny_zoo import make_zoo, write_task


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_zoo(tmp_path_factory.mktemp("zoo") / "tiny")


def changed(place, change):
    """Rewrite the tensors or arrays of a file."""
    if place.suffix == ".npz":
        np.savez(place, **change(dict(np.load(place))))
    else:
        save_file(change(load_file(place)), place)


FAULTS = {
    "a missing head": ("heads.safetensors", lambda found: {n: t for n, t in found.items() if n != "outside"}),
    "a head of another base": ("heads.safetensors", lambda f: {**f, "outside": torch.eye(3, 8)}),
    "labels of no class": ("data/outside.npz", lambda f: {**f, "test_y": f["test_y"] + 1}),
    "validation labels of no class": ("data/outside.npz", lambda f: {**f, "val_y": f["val_y"] + 1}),
    "values that are not finite": (
        "experts/beta.safetensors",
        lambda f: {**f, "visual.ln_post.bias": f["visual.ln_post.bias"] / 0},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_refuses_what_its_preflight_calls_an_error(command, tiny, tmp_path, fault):
    """Fault 15: the check said ERROR, and the run ended with 0."""
    zoo = tmp_path / "zoo"
    shutil.copytree(tiny, zoo)
    file, change = FAULTS[fault]
    changed(zoo / file, change)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"zoo": str(zoo)}))
    code, out, err = command("preflight", recipe)
    assert (code, "ERROR" in out + err) == (1, True)
    code, _, err = command("run", recipe, "-q")
    assert code == 1
    assert err.startswith("Error: ")
    assert "nexpected" not in err
    assert "Traceback" not in err


def test_a_preflight_foretells_the_building_of_heads(tmp_path):
    """Fault 15: 63 s were foretold and 266 s passed; the text encoder's work was missing."""
    zoo = make_zoo(tmp_path / "zoo")
    recipe = parse_recipe({"zoo": str(zoo)})
    rates = Rates()
    brought = estimate(recipe, gather(Zoo.open(str(zoo)), recipe), rates)
    assert "heads" not in brought.parts
    document = yaml.safe_load((zoo / "zoo.yaml").read_text())
    del document["heads"]
    text = {"context_length": 77, "vocab_size": 49408, "width": 512, "heads": 8, "layers": 12}
    config = yaml.safe_load((zoo / "config.json").read_text())
    (zoo / "config.json").write_text(json.dumps({**config, "text_cfg": text}))
    for task in document["tasks"]:
        task["templates"] = [f"{number}: a {{}}" for number in range(80)]
    document["tasks"][0]["words"] = {"circle": ["circle", "ring"]}
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(document))
    # 2 × 12 w² + 4 n w operations a token of each of 12 blocks, 77 tokens; 80 × (4 × 3 + 1) prompts
    work = 12 * 77 * (24 * 512**2 + 4 * 77 * 512)
    assert prompt_flops({"embed_dim": 512, "text_cfg": text}) == pytest.approx(work)
    built = estimate(recipe, gather(Zoo.open(str(zoo)), recipe), rates)
    assert built.parts["heads"] == pytest.approx(1040 * work / (0.8 * 0.6 * rates.matmul), rel=1e-3)
    assert built.seconds - brought.seconds == pytest.approx(built.parts["heads"], abs=0.2)


def test_options_that_a_result_has_no_place_for_are_refused(command, tiny, tmp_path):
    """Fault 15: `export --task` was ignored for merges of one model."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"zoo": str(tiny)}))
    assert command("run", recipe, "--out", tmp_path / "run", "-q")[0] == 0
    for to, more in ((tmp_path / "hf", ["--format", "hf"]), (tmp_path / "m.safetensors", []), (tmp_path / "m.csv", [])):
        code, _, err = command("export", tmp_path / "run", "--to", to, "--task", "alpha", *more)
        assert code == 1
        assert "leave" in err
        assert not to.exists()
        assert command("export", tmp_path / "run", "--to", to, *more)[0] == 0


@pytest.mark.parametrize("kind", ["prototypes", "probe", ""])
def test_a_card_says_how_the_heads_were_made(command, tiny, tmp_path, kind):
    """Fault 15: heads of class means were called zero-shot."""
    zoo = tmp_path / "zoo"
    shutil.copytree(tiny, zoo)
    save_file(load_file(zoo / "heads.safetensors"), zoo / "heads.safetensors", {HEADS_KEY: kind} if kind else None)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"zoo": str(zoo)}))
    assert command("run", recipe, "--out", tmp_path / "run", "-q")[0] == 0
    assert command("export", tmp_path / "run", "--to", tmp_path / "hf", "--format", "hf")[0] == 0
    card = (tmp_path / "hf" / "README.md").read_text()
    words = {"prototypes": "class means", "probe": "linear probes"}.get(kind, "zero-shot, brought with the zoo")
    assert words in card[card.index("Evaluated images") :]
    assert ("not zero-shot" in card) == bool(kind)
    assert model_card(read_report(tmp_path / "run"), [], "hf", {}).count("zero-shot") == 1


def test_what_is_written_may_be_read_by_whom_the_umask_lets(command, tiny, tmp_path):
    """Fault 15: files of mode 0600 lay beside others of 0644."""
    from engine.zoo.importing.convert import import_zoo

    before = os.umask(0o022)
    try:
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(yaml.safe_dump({"zoo": str(tiny)}))
        assert command("run", recipe, "--out", tmp_path / "run", "-q")[0] == 0
        assert command("merge", recipe, "--out", tmp_path / "merged.safetensors")[0] == 0
        for layout in ("hf", "open_clip"):
            assert command("export", tmp_path / "run", "--to", tmp_path / layout, "--format", layout)[0] == 0
        experts = [(name, tiny / "experts" / f"{name}.safetensors") for name in ("alpha", "beta")]
        write_task(tmp_path / "alpha.npz", 0, 12)
        data = {"alpha": str(tmp_path / "alpha.npz")}
        heads = [{"path": str(tiny / "heads.safetensors")}]
        import_zoo(ask(tmp_path, tiny / "base.safetensors", *experts, heads=heads, data=data), silent)
    finally:
        os.umask(before)
    written = [path for name in ("run", "hf", "open_clip", "zoo") for path in (tmp_path / name).rglob("*")]
    for path in [*written, tmp_path / "merged.safetensors"]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o755 if path.is_dir() else 0o644), f"{path}: {mode:o}"


def test_a_collection_says_what_it_keeps(command, tiny, tmp_path):
    """Fault 15: `gc --days 0` kept what was made in the last hour without saying so."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"zoo": str(tiny)}))
    assert command("run", recipe, "-q")[0] == 0
    code, out, _ = command("runs", "gc", "--days", "0", "--dry")
    assert (code, "last hour" in out) == (0, False)
    store = Store()
    count = len(list(store.artefacts()))
    store.runs.delete(next(run.id for run in store.runs.list()))
    code, out, _ = command("runs", "gc", "--days", "0")
    assert code == 0
    assert f"{count} unused artefacts of the last hour stay" in out
    assert len(list(store.artefacts())) == count


@pytest.mark.parametrize("form", ["transformers", "a training checkpoint"])
def test_a_merge_of_files_in_other_forms_names_the_import(command, tiny, tmp_path, form):
    """Fault 13: it asked to save the image encoder with a prefix."""
    if form == "transformers":
        base = foreign.write_hf(tmp_path / "base", "base") / "model.safetensors"
    else:
        save_file(
            {f"module.{n}": t for n, t in load_file(tiny / "base.safetensors").items()}, tmp_path / "b.safetensors"
        )
        base = tmp_path / "b.safetensors"
    code, _, err = command("merge", "--base", base, "--expert", base, "--out", tmp_path / "merged.safetensors")
    assert code == 1
    assert "zoo import" in err
    assert not (tmp_path / "merged.safetensors").exists()


def test_one_class_is_told_in_plain_words(command, tmp_path):
    """Fault 13: a .zip of one class came back in the words of a library."""
    write_zip(tmp_path / "images.zip", classes=("ant",))
    code, _, err = command(
        "zoo", "init", tmp_path / "zoo", "--base", "mini8", "--data", tmp_path / "images.zip", "--heads", "prototypes"
    )
    assert code == 1
    assert "the class 'ant' is the only one; a task needs two or more" in err
    assert not [word for word in ("pydantic", "validation error", "Tuple", "tuple") if word in err]
    assert not (tmp_path / "zoo").exists()


def test_a_config_without_an_image_size_means_open_clips_own(tmp_path):
    folder = make_zoo(tmp_path / "zoo")
    config = json.loads((folder / "config.json").read_text())
    del config["vision_cfg"]["image_size"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ZooError, match="has positions for images of 224 px"):
        preprocessing(folder, read_manifest(folder))
