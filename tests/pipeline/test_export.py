"""Merged weights go out as open_clip and as Hugging Face CLIP, with card and provenance, and come back the same."""

import json

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from engine.__main__ import app
from engine.errors import EngineError
from engine.pipeline.export.model import export_model
from engine.pipeline.local import run_recipe
from engine.recipe import parse_recipe
from engine.store import Store
from engine.weights import open_weights, visual
from engine.zoo.importing.layouts import find_encoder
from engine.zoo.importing.sources import open_source
from tests.tiny_zoo import make_zoo

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run with a calibrator: its folder, and its zoo."""
    folder = tmp_path_factory.mktemp("export")
    zoo = make_zoo(folder / "zoo")
    recipe = parse_recipe({"zoo": str(zoo), "calibrators": [{"method": "surgery", "params": {"rank": 2, "steps": 20}}]})
    run_recipe(recipe, Store(folder / "store"), out=folder / "run")
    return folder / "run", zoo


def export(run, out, layout, **more):
    return export_model(run, out, layout, Store().digest_file, **more)


def same(weights, expected):
    assert set(weights.names) == set(expected.names)
    for name in expected.names:
        assert torch.allclose(weights.tensor(name), expected.tensor(name), rtol=0, atol=TOLERANCE), name


def test_hugging_face_folder_comes_back(run, tmp_path):
    folder, _ = run
    files = export(folder, tmp_path / "hf", "hf")
    written = {str(path.relative_to(tmp_path / "hf")) for path in (tmp_path / "hf").rglob("*") if path.is_file()}
    assert set(files) == written
    assert {"model.safetensors", "config.json", "preprocessor_config.json", "README.md"} <= written
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    assert tensors["vision_model.encoder.layers.1.self_attn.k_proj.weight"].shape == (32, 32)
    assert tensors["visual_projection.weight"].shape == (16, 32)
    merged = visual(open_weights(folder / "merged.safetensors"))
    same(find_encoder(open_source(tmp_path / "hf")).visual, merged)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["hidden_act"], config["num_attention_heads"], config["intermediate_size"]) == ("gelu", 2, 64)


def test_open_clip_folder_comes_back(run, tmp_path):
    import engine

    folder, _ = run
    export(folder, tmp_path / "oc", "open_clip")
    merged = visual(open_weights(folder / "merged.safetensors"))
    same(find_encoder(open_source(tmp_path / "oc" / "merged.safetensors")).visual, merged)
    images = torch.randint(0, 255, (2, 16, 16, 3), dtype=torch.uint8)
    first, second = (engine.load_merged(place) for place in (folder, tmp_path / "oc" / "merged.safetensors"))
    with torch.no_grad():
        assert torch.equal(first(first.preprocess(images)), second(second.preprocess(images)))


def test_the_card_says_where_everything_comes_from(run, tmp_path):
    folder, zoo = run
    export(folder, tmp_path / "hf", "hf")
    card = (tmp_path / "hf" / "README.md").read_text()
    report = json.loads((folder / "report.json").read_text())
    for expert in ("alpha", "beta", "gamma"):
        assert Store().digest_file(zoo / "experts" / f"{expert}.safetensors") in card
    assert report["zoo"]["digest"] in card
    assert f"{report['accuracy']['merged']['alpha']:.1f}" in card
    for words in ("Task Arithmetic", "scaling 0.3", "held_out", "surgery", "Training seeds: 0", "heads.safetensors"):
        assert words in card
    heads = load_file(tmp_path / "hf" / "heads.safetensors")
    assert heads["alpha"].shape == (3, 16)
    assert heads["logit_scale"].item() == pytest.approx(2.0)
    assert (tmp_path / "hf" / "calibrators" / "surgery.safetensors").is_file()


def test_nothing_is_overwritten_and_nothing_half_written(run, tmp_path):
    folder, _ = run
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("mine")
    with pytest.raises(EngineError, match="not empty"):
        export(folder, tmp_path / "there", "hf")

    def stop(fraction, message=""):
        raise EngineError("stopped")

    with pytest.raises(EngineError, match="stopped"):
        export(folder, tmp_path / "new", "hf", progress=stop)
    assert [path.name for path in tmp_path.iterdir() if path.name != "store"] == ["there"]


def test_a_merge_for_every_task_is_exported_for_one(run, tmp_path):
    _, zoo = run
    recipe = parse_recipe({"zoo": str(zoo), "merge": {"method": "emr"}})
    run_recipe(recipe, Store(tmp_path / "store"), out=tmp_path / "run")
    with pytest.raises(EngineError, match="--task"):
        export(tmp_path / "run", tmp_path / "hf", "hf")
    export(tmp_path / "run", tmp_path / "hf", "hf", task="beta")
    beta, base = (visual(open_weights(zoo / name)) for name in ("experts/beta.safetensors", "base.safetensors"))
    found = find_encoder(open_source(tmp_path / "hf")).visual
    name = "visual.conv1.weight"
    vector, wanted = found.tensor(name) - base.tensor(name), beta.tensor(name) - base.tensor(name)
    assert torch.cosine_similarity(vector.flatten(), wanted.flatten(), dim=0) > 0.5


def test_a_merge_for_every_image_says_how_it_is_used_instead(run, tmp_path):
    _, zoo = run
    merge = {"method": "twin", "params": {"examples": 4, "epochs": 1}}
    run_recipe(parse_recipe({"zoo": str(zoo), "merge": merge}), Store(tmp_path / "store"), out=tmp_path / "run")
    with pytest.raises(EngineError, match="other program's format"):
        export(tmp_path / "run", tmp_path / "hf", "hf")
    result = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--to", str(tmp_path / "m.safetensors")])
    assert isinstance(result.exception, EngineError)
    assert "one file cannot hold them" in str(result.exception)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "store"}


def test_the_command_line_writes_every_format(run, tmp_path):
    folder, _ = run
    for layout, made in (("hf", "hf/config.json"), ("open_clip", "oc/README.md"), ("mergekit", "recipe.yaml")):
        target = tmp_path / made.split("/")[0]
        result = CliRunner().invoke(app, ["export", str(folder), "--to", str(target), "--format", layout])
        assert result.exit_code == 0, result.output
        assert (tmp_path / made).is_file()
    result = CliRunner().invoke(app, ["export", str(folder), "--to", str(tmp_path / "x"), "--format", "gguf"])
    assert isinstance(result.exception, EngineError)
