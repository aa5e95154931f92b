"""Merged weights go out as open_clip and as Hugging Face CLIP, with card and provenance, and come back the same."""

import json

import pytest
import torch
import yaml
from open_clip.model import CLIP
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from engine.__main__ import app
from engine.errors import EngineError
from engine.pipeline.export.model import export_model
from engine.pipeline.local import run_recipe
from engine.recipe import parse_recipe
from engine.store import Store
from engine.weights import encoder_part, open_weights
from engine.zoo.importing.layouts import find_encoder
from engine.zoo.importing.sources import open_source
from tests.tiny_zoo import CONFIG, make_zoo

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run with a calibrator: its folder, and its zoo."""
    folder = tmp_path_factory.mktemp("export")
    zoo = make_zoo(folder / "zoo")
    torch.manual_seed(0)
    save_file(CLIP(**CONFIG).state_dict(), zoo / "base.safetensors")  # with its text encoder
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
    merged = encoder_part(open_weights(folder / "merged.safetensors"))
    same(find_encoder(open_source(tmp_path / "hf")).visual, merged)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["hidden_act"], config["num_attention_heads"], config["intermediate_size"]) == ("gelu", 2, 64)


def test_open_clip_folder_comes_back(run, tmp_path):
    import engine

    folder, _ = run
    export(folder, tmp_path / "oc", "open_clip")
    merged = encoder_part(open_weights(folder / "merged.safetensors"))
    same(find_encoder(open_source(tmp_path / "oc")).visual, merged)
    images = torch.randint(0, 255, (2, 16, 16, 3), dtype=torch.uint8)
    first, second = (engine.load_merged(place) for place in (folder, tmp_path / "oc" / "open_clip_model.safetensors"))
    with torch.no_grad():
        assert torch.equal(first(first.preprocess(images)), second(second.preprocess(images)))


def pictures():
    """Images of several sizes, and their features from the run's own weights."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    return [
        Image.fromarray(random.integers(0, 255, (*size, 3), dtype=np.uint8)) for size in ((16, 16), (24, 40), (9, 31))
    ]


def test_other_libraries_compute_the_same(run, tmp_path):
    import open_clip
    from transformers import CLIPImageProcessor, CLIPVisionModelWithProjection

    import engine

    folder, _ = run
    own = engine.load_merged(folder)
    export(folder, tmp_path / "hf", "hf")
    export(folder, tmp_path / "oc", "open_clip")
    theirs = CLIPVisionModelWithProjection.from_pretrained(tmp_path / "hf").eval()
    processor = CLIPImageProcessor.from_pretrained(tmp_path / "hf")
    model, preprocess = open_clip.create_model_from_pretrained(f"local-dir:{tmp_path / 'oc'}")
    with torch.no_grad():
        pixels = own.preprocess(pictures())
        expected = own(pixels)
        assert torch.allclose(theirs(pixel_values=pixels).image_embeds, expected, atol=TOLERANCE)
        assert torch.allclose(model.encode_image(pixels), expected, atol=TOLERANCE)
        square = pictures()[:1]  # of the right size, so nothing is resized
        assert torch.allclose(processor(images=square, return_tensors="pt").pixel_values, pixels[:1], atol=TOLERANCE)
        assert torch.allclose(preprocess(square[0])[None], pixels[:1], atol=TOLERANCE)
    text = load_file(tmp_path / "oc" / "open_clip_model.safetensors")["token_embedding.weight"]
    assert torch.equal(text, model.token_embedding.weight)


@pytest.mark.parametrize("rank", [None, 2, 64])
def test_peft_loads_the_adapter_and_loses_what_is_said(run, tmp_path, rank):
    from peft import PeftModel
    from transformers import CLIPVisionModelWithProjection

    from engine.weights.huggingface import ToHuggingFace

    folder, zoo = run
    files = export(folder, tmp_path / "lora", "peft", rank=rank)
    export(folder, tmp_path / "hf", "hf")
    model = CLIPVisionModelWithProjection.from_pretrained(tmp_path / "hf").eval()
    merged = {name: value.clone() for name, value in model.state_dict().items()}
    base = ToHuggingFace(encoder_part(open_weights(zoo / "base.safetensors")))
    model.load_state_dict({name: base.tensor(name) for name in base.names}, strict=False)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    adapted = PeftModel.from_pretrained(model, tmp_path / "lora").merge_and_unload().state_dict()
    lost = sum(float((merged[name] - adapted[name]).double().square().sum()) for name in base.names)
    total = sum(float((merged[name] - start[name]).double().square().sum()) for name in base.names)
    assert (
        f"{100 * (lost / total) ** 0.5:.2f} % of the task vector's norm are lost" in files["adapter_model.safetensors"]
    )
    for name in base.names:
        if rank == 64 and name.endswith(("proj.weight", "fc1.weight", "fc2.weight", "projection.weight")):
            assert torch.allclose(merged[name], adapted[name], atol=TOLERANCE), name


def test_an_adapter_is_brought_back_as_an_expert(run, tmp_path):
    """Round trip through PEFT's form, all of the task vector kept."""
    from tests.made_imports import ask, done

    folder, zoo = run
    export(folder, tmp_path / "lora", "peft", rank=64)
    brought, summary = done(ask(tmp_path, zoo / "base.safetensors", ("again", tmp_path / "lora"), preprocess=""))
    assert "LoRA" in summary["rows"][1]["layout"]
    merged, again = encoder_part(open_weights(folder / "merged.safetensors")), brought.weights("again")
    base, exact = encoder_part(open_weights(zoo / "base.safetensors")), 0
    for name in merged.names:
        if name.endswith(("in_proj_weight", "out_proj.weight", "c_fc.weight", "c_proj.weight")):
            assert torch.allclose(again.tensor(name), merged.tensor(name), rtol=0, atol=TOLERANCE), name
            exact += not torch.equal(merged.tensor(name), base.tensor(name))
    assert exact >= 8


def test_the_hubs_own_library_reads_a_card(run, tmp_path):
    from huggingface_hub import ModelCard

    export(run[0], tmp_path / "hf", "hf")
    data = ModelCard.load(tmp_path / "hf" / "README.md").data
    assert (data.library_name, data.license) == ("transformers", "unknown")
    assert {"merge", "mergelens"} <= set(data.tags)


@pytest.mark.parametrize("layout", ["hf", "open_clip"])
def test_an_export_is_brought_back_without_a_word(run, tmp_path, layout):
    """Fault 4: the own export came back neither here nor in open_clip."""
    from engine.zoo.importing.survey import survey
    from tests.made_imports import ask, silent

    folder, zoo = run
    export(folder, tmp_path / "out", layout)
    found = survey(
        ask(tmp_path, tmp_path / "out", ("alpha", zoo / "experts" / "alpha.safetensors"), preprocess=""), silent
    )
    assert not found.faults
    assert found.architecture.config["vision_cfg"]["head_width"] == 16
    assert found.architecture.config["quick_gelu"] is False
    assert found.architecture.preprocess.std == (0.3, 0.3, 0.3)


def test_one_file_says_everything(run, tmp_path):
    folder, _ = run
    result = CliRunner().invoke(app, ["export", str(folder), "--to", str(tmp_path / "m.safetensors")])
    assert result.exit_code == 0, result.output
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        header = file.metadata()
    assert json.loads(header["mergelens"])["preprocess"]["std"] == [0.3, 0.3, 0.3]
    assert [origin["name"] for origin in json.loads(header["origins"])][1:] == ["alpha", "beta", "gamma"]
    assert parse_recipe(yaml.safe_load(header["recipe"])).merge.method == "task_arithmetic"
    assert header["licence"] == "unknown"
    result = CliRunner().invoke(
        app, ["export", str(folder), "--to", str(tmp_path / "x"), "--format", "hf", "--task", "alpha"]
    )
    assert "one model for all tasks" in str(result.exception)


@pytest.mark.parametrize(
    ("licences", "expected"),
    [
        (("mit", "apache-2.0"), "mit"),
        (("mit", "cc-by-nc-4.0"), "cc-by-nc-4.0"),
        (("mit", ""), "unknown"),
        (("mit", "my own terms"), "other"),
        (("my own terms", "my own terms"), "my own terms"),
        ((), "unknown"),
    ],
)
def test_a_card_has_the_strictest_licence_and_the_hubs_fields(run, licences, expected):
    from engine.pipeline.export.card import model_card
    from engine.pipeline.run.receipt import Origin
    from engine.report import read_report

    origins = [Origin("base", "b", "", "0", "hf:openai/clip-vit-base-patch32", "")]
    origins += [Origin("expert", f"e{n}", "t", "0", f"hf:some/expert{n}@main", text) for n, text in enumerate(licences)]
    front = yaml.safe_load(model_card(read_report(run[0]), origins, "hf", {}).split("---")[1])
    assert front["license"] == expected
    assert front["base_model"][0] == "openai/clip-vit-base-patch32"
    assert len(front["base_model"]) == 1 + len(licences)
    assert front["base_model_relation"] == "merge"


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
    measured = (tmp_path / "hf" / "README.md").read_text().split("## Measured")[1].split("## Files")[0]
    accuracy = json.loads((tmp_path / "run" / "report.json").read_text())["accuracy"]["merged"]
    assert "the weights for beta alone" in measured
    assert f"| merged | {accuracy['beta']:.1f} |" in measured
    assert "alpha" not in measured
    assert "mean, in-domain" not in measured
    beta, base = (encoder_part(open_weights(zoo / name)) for name in ("experts/beta.safetensors", "base.safetensors"))
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
