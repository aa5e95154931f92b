"""One zoo in every form that strangers bring: each is read as it was meant, or refused with what was tried."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine.errors import ZooError
from engine.manifest import read_manifest
from engine.zoo.encoders.backbone import architecture, load_encoder
from engine.zoo.folder import Zoo
from engine.zoo.importing.convert import import_zoo
from engine.zoo.importing.request import parse_request
from engine.zoo.importing.survey import survey
from engine.zoo.inspection.agreement import classify
from tests import foreign
from tests.made_imports import silent

EXPERTS = ("digits", "signs")
HEADS = {"head_width": "32 (4 heads)", "quick_gelu": "GELU"}


def ask(tmp_path, base, experts, *, heads=True, data=True, **more):
    """Everything named by the user, as on the command line."""
    document = {"base": str(base), "name": "brought", "out": str(tmp_path / "zoo"), **more}
    document["experts"] = [{"name": name, "path": str(path)} for name, path in experts.items()]
    if heads:
        made = {name: foreign.write_head(tmp_path / "heads" / f"head_{name}.pt", name) for name in experts}
        document["heads"] = [{"task": name, "path": str(path)} for name, path in made.items()]
    if data:
        document["data"] = {name: str(foreign.data(name)) for name in experts}
    return parse_request(document)


def scores(zoo):
    """Percent of the first test images that base and expert recognise, by task."""
    config, found = architecture(zoo.folder, zoo.manifest), {}
    for name, expert in zoo.manifest.expert_table.items():
        head = zoo.heads([expert.task])[0][expert.task]
        data = zoo.open_data(expert.task)
        for model in ("base", name):
            encoder = load_encoder(config, zoo.weights(model))
            judged = classify(encoder, head, data, np.arange(foreign.SCORED), [zoo.preprocess()])[0]
            found[expert.task, "base" if model == "base" else "expert"] = 100 * judged.correct.mean()
    return found


@pytest.fixture(scope="module")
def expected():
    pairs = [(task, model) for task in EXPERTS for model in ("base", "expert")]
    return {(task, model): foreign.accuracy(task, task if model == "expert" else "base") for task, model in pairs}


def test_the_foreign_models_compute_the_same(expected):
    pixels = torch.randn(3, 3, 32, 32)
    tokens = torch.tensor([[5, 9, foreign.CONFIG["text_cfg"]["vocab_size"] - 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]])
    for model in ("base", "digits"):
        ours, theirs = foreign.clip(model), foreign.hugging_face(model)
        with torch.no_grad():
            seen = foreign.vision(model)(pixel_values=pixels).image_embeds
            read = theirs.text_projection(theirs.text_model(input_ids=tokens).pooler_output)
            assert torch.allclose(ours.visual(pixels), seen, atol=1e-5)
            assert torch.allclose(ours.encode_text(tokens), read, atol=1e-5)
    assert expected["digits", "expert"] > 90
    assert expected["digits", "base"] < 70


def test_facts_of_hugging_face_folders_have_origins(tmp_path):
    start = foreign.write_hf(tmp_path / "base", "base", form="whole")
    forms = {"digits": "projection", "signs": "bare"}
    experts = {name: foreign.write_hf(tmp_path / name, name, form=forms[name], prepared=False) for name in EXPERTS}
    summary = import_zoo(ask(tmp_path, start, experts), silent)
    zoo = Zoo.open(str(tmp_path / "zoo"))
    facts = {fact["name"]: fact for fact in summary["facts"]}
    assert {name: facts[name]["value"] for name in HEADS} == HEADS
    assert set(zoo.manifest.backbone.origins) == {
        *HEADS,
        "architecture",
        "preprocess",
        "projection",
        "logit_scale",
        "dtype",
    }
    assert facts["architecture"]["value"].startswith("ViT, 8 blocks of width 128, patches of 8 px, images of 32 px")
    assert facts["projection"]["value"] == "the base's, for signs"
    assert torch.equal(zoo.weights("signs").tensor("visual.proj"), zoo.weights("base").tensor("visual.proj"))
    assert torch.equal(zoo.weights("digits").tensor("visual.proj"), foreign.clip("digits").visual.proj)
    assert facts["dtype"] == {"name": "dtype", "value": "float32", "origin": "read: the weights, and kept"}
    assert facts["preprocess"]["origin"] == "read: preprocessor_config.json"
    assert zoo.preprocess().std == foreign.STD
    assert "read: preprocessor_config.json" in zoo.manifest.backbone.origins["preprocess"]
    assert not [text for text in summary["warnings"] if "below its base" in text]


def test_folders_as_on_the_hub(tmp_path):
    """Faults 3 and 4: preprocess_cfg is read, and the folders are found by --folder."""
    from engine.zoo.importing.roots import find_candidates

    start = foreign.write_hub(tmp_path / "all" / "base", "base")
    experts = {name: foreign.write_hub(tmp_path / "all" / name, name) for name in EXPERTS}
    found = find_candidates(tmp_path / "all", roots=(tmp_path,))
    assert found.base == start
    assert found.experts == list(experts.values())
    import_zoo(ask(tmp_path, start, experts), silent)
    zoo = Zoo.open(str(tmp_path / "zoo"))
    assert zoo.manifest.backbone.preprocess.mean == foreign.MEAN
    assert "open_clip_config.json" in zoo.manifest.backbone.origins["head_width"]


def test_bare_weights_without_images_are_refused_with_what_was_tried(tmp_path):
    """Fault 2: 64 was written where 32 is true, and nobody knew."""
    start = foreign.write_state(tmp_path / "base.pt", "base", nested=True)
    experts = {"digits": foreign.write_tensors(tmp_path / "digits.safetensors", "digits")}
    for request in (
        ask(tmp_path, start, experts, data=False),
        ask(tmp_path, start, experts, heads=False, data=False),
    ):
        with pytest.raises(ZooError) as caught:
            import_zoo(request, silent)
        text = str(caught.value)
        for words in ("--head-width", "32 (4 heads)", "--quick-gelu", "--preprocess", "inception"):
            assert words in text, words
        assert not (tmp_path / "zoo").exists()


def test_bare_weights_are_read_as_given(tmp_path, expected):
    start = foreign.write_state(tmp_path / "base.pt", "base", nested=True)
    experts = {name: foreign.write_tensors(tmp_path / f"{name}.safetensors", name) for name in EXPERTS}
    given = {"head_width": 32, "quick_gelu": False, "preprocess": "mean=0.5,0.5,0.5;std=0.27,0.27,0.27"}
    import_zoo(ask(tmp_path, start, experts, **given), silent)
    assert scores(Zoo.open(str(tmp_path / "zoo"))) == pytest.approx(expected, abs=0.01)
    (tmp_path / "elsewhere").mkdir()
    config = tmp_path / "elsewhere" / "open_clip_config.json"
    document = {"model_cfg": foreign.CONFIG, "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.27] * 3}}
    config.write_text(json.dumps(document))
    given = {"architecture": str(config), "preprocess": str(config), "out": str(tmp_path / "second")}
    import_zoo(ask(tmp_path, start, experts, **given), silent)
    assert scores(Zoo.open(str(tmp_path / "second"))) == pytest.approx(expected, abs=0.01)


def test_images_and_heads_decide_what_nobody_says(tmp_path, expected):
    start = foreign.write_state(tmp_path / "base.pt", "base")
    experts = {name: foreign.write_state(tmp_path / f"{name}.pt", name) for name in EXPERTS}
    given = {"preprocess": "mean=0.5,0.5,0.5;std=0.27,0.27,0.27", "quick_gelu": False}
    summary = import_zoo(ask(tmp_path, start, experts, **given), silent)
    zoo = Zoo.open(str(tmp_path / "zoo"))
    assert architecture(zoo.folder, zoo.manifest)["vision_cfg"]["head_width"] == 32
    assert scores(zoo) == pytest.approx(expected, abs=0.01)
    fact = next(fact for fact in summary["facts"] if fact["name"] == "head_width")
    assert fact["origin"].startswith("decided by")
    assert "next best" in fact["origin"]


def test_a_word_against_the_files_is_said(tmp_path):
    start = foreign.write_hub(tmp_path / "base", "base")
    experts = {name: foreign.write_hub(tmp_path / name, name) for name in EXPERTS}
    found = survey(ask(tmp_path, start, experts, head_width=64), silent)
    assert any("64 is taken" in text and "32 is said elsewhere" in text for text in found.warnings)


def test_an_expert_below_its_base_is_a_finding(tmp_path):
    start = foreign.write_hub(tmp_path / "base", "base")
    experts = {"digits": foreign.write_hub(tmp_path / "x", "textures")}  # fine-tuned on something else
    found = survey(ask(tmp_path, start, experts), silent)
    assert any("Expert 'digits' classifies" in text for text in found.warnings)
    right = survey(ask(tmp_path, start, {"digits": foreign.write_hub(tmp_path / "y", "digits")}), silent)
    assert not any("classifies" in text for text in right.warnings)


def test_the_projects_own_files_say_everything(tmp_path, expected):
    """A merge of an import, brought again as a base, needs no word."""
    from engine.pipeline.export.merge_files import merge_recipe
    from engine.recipe import parse_recipe

    start = foreign.write_hub(tmp_path / "base", "base")
    experts = {name: foreign.write_hub(tmp_path / name, name) for name in EXPERTS}
    import_zoo(ask(tmp_path, start, experts), silent)
    own = {name: tmp_path / "zoo" / "experts" / f"{name}.safetensors" for name in EXPERTS}
    import_zoo(ask(tmp_path, tmp_path / "zoo" / "base.safetensors", own, out=str(tmp_path / "second")), silent)
    assert scores(Zoo.open(str(tmp_path / "second"))) == pytest.approx(expected, abs=0.01)
    recipe = parse_recipe({"zoo": str(tmp_path / "zoo")})
    (tmp_path / "alone").mkdir()
    merge_recipe(recipe, tmp_path / "alone" / "merged.safetensors")
    third = ask(tmp_path, tmp_path / "alone" / "merged.safetensors", own, out=str(tmp_path / "third"))
    summary = import_zoo(third, silent)
    asked = {
        f["name"]: f["origin"] for f in summary["facts"] if f["name"] in ("head_width", "quick_gelu", "preprocess")
    }
    assert asked == dict.fromkeys(asked, "read: the header of merged.safetensors")


def test_a_complete_clip_of_custom_size_keeps_its_text_side(tmp_path):
    """Fault 12: the text_config is translated, so what the import says of heads is true."""
    (tmp_path / "base").mkdir()
    start = foreign.write_hf(tmp_path / "base", "base", form="whole")
    (start / "vocabulary.json").write_bytes((foreign.ZOO / "vocabulary.json").read_bytes())
    experts = {"digits": foreign.write_hf(tmp_path / "digits", "digits")}
    folders = foreign.write_folders(tmp_path / "images" / "digits", "digits", 200)
    described = {"class_names": foreign.classes("digits"), "templates": foreign.entry("digits")["templates"]}
    (tmp_path / "images" / "digits.json").write_text(json.dumps(described))
    request = ask(tmp_path, start, experts, heads=False, data=False)
    request = request.model_copy(update={"data": {"digits": str(folders)}})
    assert "so heads can be built" in import_zoo(request, silent)["rows"][0]["notes"][-1]
    zoo = Zoo.open(str(tmp_path / "zoo"))
    assert architecture(zoo.folder, zoo.manifest)["text_cfg"]["heads"] == 4
    assert zoo.text_problem == ""
    built = zoo.heads(["digits"])[0]["digits"].weight
    assert built.shape == (10, 128)
    assert zoo.manifest.task_table["digits"].classes == foreign.classes("digits")
    assert torch.allclose(built, foreign.rows("digits"), atol=2e-3)
    (start / "vocabulary.json").unlink()
    found = survey(request.model_copy(update={"out": str(tmp_path / "other")}), silent)
    assert "no vocabulary.json lies beside it, so no heads" in found.rows[0].notes[-1]


@pytest.mark.parametrize("half", [False, True])
def test_lora_adapters_of_peft(tmp_path, half):
    """Fault 15: an adapter on a half-precision base is not rounded."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model = foreign.vision("base")
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "fc1"], init_lora_weights=False)
    adapted = get_peft_model(model, config).eval()
    adapted.save_pretrained(tmp_path / "lora")
    start = foreign.write_hf(tmp_path / "base", "base")
    if half:
        state = {n: v.half() for n, v in foreign.vision("base").state_dict().items()}
        save_file({name: value.contiguous() for name, value in state.items()}, start / "model.safetensors")
    request = ask(tmp_path, start, {"digits": tmp_path / "lora"}, heads=False, data=False, dtype="float32")
    import_zoo(request, silent)
    zoo = Zoo.open(str(tmp_path / "zoo"))
    encoder = load_encoder(architecture(zoo.folder, zoo.manifest), zoo.weights("digits"))
    pixels = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        merged = adapted.merge_and_unload()
        theirs = merged(pixel_values=pixels).image_embeds
        assert torch.allclose(encoder(pixels), theirs, atol=2e-3 if half else 1e-5)
    if half:
        wide = zoo.weights("digits").tensor("visual.transformer.resblocks.0.mlp.c_fc.weight")
        assert not torch.equal(wide, wide.half().float())


def test_manifests_without_origins_are_read_as_before(tmp_path):
    assert "origins" not in read_manifest(foreign.ZOO).backbone.model_dump()


def test_an_experts_own_places_say_what_the_bases_do_not(tmp_path, expected):
    """The base lies bare; the experts' configs were written by transformers, with the same sizes."""
    start = foreign.write_state(tmp_path / "base.pt", "base")
    experts = {name: foreign.write_hf(tmp_path / name, name) for name in EXPERTS}
    import_zoo(ask(tmp_path, start, experts, data=False), silent)
    zoo = Zoo.open(str(tmp_path / "zoo"))
    origins = zoo.manifest.backbone.origins
    assert origins["head_width"] == "32 (4 heads) (read: config.json of expert 'digits')"
    assert origins["preprocess"].endswith("(read: preprocessor_config.json of expert 'digits')")
    brought = {name: foreign.write_head(tmp_path / f"{name}.pt", name) for name in EXPERTS}
    assert zoo.preprocess().std == foreign.STD
    assert set(brought) == set(zoo.manifest.expert_table)


def test_experts_that_disagree_decide_nothing(tmp_path):
    start = foreign.write_state(tmp_path / "base.pt", "base")
    experts = {name: foreign.write_hf(tmp_path / name, name) for name in EXPERTS}
    other = json.loads((experts["signs"] / "config.json").read_text())
    (experts["signs"] / "config.json").write_text(json.dumps({**other, "num_attention_heads": 8}))
    found = survey(ask(tmp_path, start, experts, data=False), silent)
    assert [fault for fault in found.faults if "--head-width" in fault.text]
    assert not [fault for fault in found.faults if "--preprocess" in fault.text]


def named_folder(tmp_path):
    """A base without preprocessor config, whose config names a checkpoint that OpenAI published."""
    start = foreign.write_hf(tmp_path / "base", "base", prepared=False)
    document = {**json.loads((start / "config.json").read_text()), "_name_or_path": "openai/clip-vit-base-patch32"}
    (start / "config.json").write_text(json.dumps(document))
    return start, {"digits": foreign.write_hf(tmp_path / "digits", "digits", prepared=False)}


def test_a_name_is_a_hint_and_no_proof(tmp_path):
    """Without images, or with few, the option is named: this model saw others than those of the checkpoint."""
    start, experts = named_folder(tmp_path)
    found = survey(ask(tmp_path, start, experts, data=False), silent)
    (fault,) = found.faults
    assert "config.json names openai/clip-vit-base-patch32, which was trained with --preprocess openai" in fault.text
    assert not survey(ask(tmp_path, start, experts, data=False, preprocess="openai"), silent).faults


def test_images_that_do_not_speak_against_a_name_let_it_count(tmp_path):
    start, experts = named_folder(tmp_path)
    with np.load(foreign.data("digits")) as arrays:
        for name, count in (("few", 24), ("more", 120)):
            np.savez(tmp_path / f"{name}.npz", test_x=arrays["test_x"][:count], test_y=arrays["test_y"][:count])
    few, request = (
        ask(tmp_path, start, experts).model_copy(update={"data": {"digits": str(tmp_path / f"{name}.npz")}})
        for name in ("few", "more")
    )
    assert [fault for fault in survey(few, silent).faults if "--preprocess openai" in fault.text]
    found = survey(request, silent)
    assert not found.faults
    origin = next(fact.origin for fact in found.known if fact.name == "preprocess")
    assert "names openai/clip-vit-base-patch32; images of digits do not speak against it" in origin
    (start / "config.json").write_text((start / "config.json").read_text().replace("openai/clip", "somebody/clip"))
    assert [fault for fault in survey(request, silent).faults if "--preprocess" in fault.text]
