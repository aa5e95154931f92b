"""Published prompts: the sentences of their sources, heads as open_clip builds them, own ones, and their names."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from open_clip import build_zero_shot_classifier, get_tokenizer
from open_clip.model import CLIP
from open_clip.zero_shot_metadata import OPENAI_IMAGENET_TEMPLATES
from safetensors.torch import save_file
from typer.testing import CliRunner

from engine.__main__ import app
from engine.catalog.datasets import dataset_names, known_dataset
from engine.catalog.prompts import PROMPT_SETS, PromptSet, read_prompt_file
from engine.errors import ZooError
from engine.manifest import Manifest, Task, known_zoos, locate_description, read_manifest
from engine.pipeline.zoos.new import NewZooOptions, new_zoo
from engine.zoo.check import check_zoo
from engine.zoo.encoders.heads import heads_in_words
from engine.zoo.encoders.text import build_heads, prompts
from engine.zoo.folder import Zoo
from engine.zoo.importing.convert import import_zoo
from engine.zoo.importing.survey import survey
from tests.made_checkpoints import moved, visual_of
from tests.made_imports import ask, silent
from tests.tiny_zoo import CONFIG, make_zoo

REFERENCE = json.loads((Path(__file__).parents[1] / "reference" / "prompts" / "index.json").read_text())["sets"]
PUBLISHED = [(name, template_set) for name, sets in REFERENCE.items() for template_set in sets]
TEXT = {**CONFIG, "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}}


def task_of(dataset, template_set):
    return Task(name="task", domain="in", dataset=dataset, templates=template_set)


def test_every_data_set_has_published_prompts():
    assert set(REFERENCE) == set(dataset_names())
    assert {name: set(known_dataset(name).prompts) for name in dataset_names()} == {
        name: set(sets) for name, sets in REFERENCE.items()
    }
    assert all(known_dataset(name).prompts[template_set].source for name, template_set in PUBLISHED)


@pytest.mark.parametrize(("dataset", "template_set"), PUBLISHED)
def test_prompts_are_those_of_their_source(dataset, template_set):
    made = prompts(task_of(dataset, template_set))
    text = "\n".join("\t".join(sorted(texts)) for texts in made)
    expected = REFERENCE[dataset][template_set]
    assert sum(map(len, made)) == expected["prompts"]
    assert hashlib.sha256(text.encode()).hexdigest() == expected["sha256"]


def test_imagenets_templates_are_those_that_open_clip_has():
    made = known_dataset("imagenet").prompts["openai"].templates
    assert list(made) == [template("{}") for template in OPENAI_IMAGENET_TEMPLATES]


@pytest.fixture(scope="module")
def with_text(tmp_path_factory):
    """A zoo whose base reads CLIP's vocabulary, without heads, its tasks four known data sets; and its CLIP."""
    folder = make_zoo(tmp_path_factory.mktemp("prompts") / "zoo", experts=("dtd", "gtsrb", "fer2013"))
    (folder / "config.json").write_text(json.dumps(TEXT))
    torch.manual_seed(3)
    model = CLIP(**TEXT).eval()
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / "base.safetensors")
    document = yaml.safe_load((folder / "zoo.yaml").read_text())
    del document["heads"]
    document["tasks"] = [{"name": name, "domain": "in", "dataset": name} for name in ("dtd", "gtsrb", "fer2013")]
    (folder / "zoo.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return folder, model


@pytest.mark.parametrize(("dataset", "template_set"), [("dtd", "openai"), ("gtsrb", "fusionbench")])
def test_heads_are_those_that_open_clip_builds(with_text, dataset, template_set):
    """open_clip's own classifier, its templates and words given by hand."""
    folder, model = with_text
    manifest = read_manifest(folder)
    manifest = manifest.model_copy(update={"tasks": (task_of(dataset, template_set),)})
    ours = build_heads(folder, manifest, ["task"], silent)["task"]
    words = list(known_dataset(dataset).classes)
    if dataset == "gtsrb":  # spelled in the published prompts as here
        words[17], words[29] = words[17].replace("horizontal", "horizonal"), words[29].replace("bicycle", "bicyle")
        templates = [f'a {kind} photo of a "{{}}" traffic sign.' for kind in ("zoomed in", "centered", "close up")]
    else:
        kinds = ("texture", "pattern", "thing", "object")
        templates = [f"a photo of {article} {{}} {kind}." for article in ("a", "the") for kind in kinds]
    theirs = build_zero_shot_classifier(model, get_tokenizer("ViT-B-32"), words, templates)
    assert torch.allclose(ours, theirs.T, atol=1e-5)
    plain = build_zero_shot_classifier(model, get_tokenizer("ViT-B-32"), words, ["a photo of a {}."])
    assert not torch.allclose(ours, plain.T, atol=1e-3)


def test_a_class_of_several_names_is_the_mean_of_all_their_prompts(with_text):
    folder, model = with_text
    manifest = read_manifest(folder).model_copy(update={"tasks": (task_of("fer2013", "openai"),)})
    ours = build_heads(folder, manifest, ["task"], silent)["task"]
    templates = known_dataset("fer2013").prompts["openai"].templates
    texts = [template.format(word) for word in ("surprised", "shocked", "spooked") for template in templates]
    with torch.no_grad():
        found = torch.nn.functional.normalize(model.encode_text(get_tokenizer("ViT-B-32")(texts)), dim=1)
    expected = torch.nn.functional.normalize(found.mean(0), dim=0)
    assert torch.allclose(ours[6], expected, atol=1e-5)


def test_a_zoo_names_the_set_once_for_all_tasks(with_text):
    folder, _ = with_text
    document = yaml.safe_load((folder / "zoo.yaml").read_text())
    assert {task.template_set for task in Manifest.model_validate(document).tasks} == {"openai"}
    document["templates"] = "fusionbench"
    document["tasks"][0]["templates"] = ["a {}"]
    found = Manifest.model_validate(document)
    assert [task.prompts_label for task in found.tasks] == [
        "1 template of its own",
        "FusionBench's 3 templates",
        "FusionBench's 6 templates",
    ]
    assert Manifest.model_validate(json.loads(found.model_dump_json())) == found


@pytest.mark.parametrize("zoo", [z.name for z in known_zoos() if z.described and "glue" not in z.name])
def test_published_experts_get_the_prompts_they_were_measured_with(zoo):
    sets = {task.template_set for task in read_manifest(locate_description(zoo)).tasks}
    assert sets == ({"fusionbench"} if zoo.startswith("clip-") else {"openai", "fusionbench"})


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"dataset": "svhn", "templates": "openai"}, "it has those of fusionbench"),
        ({"dataset": "dtd", "templates": "nonsense"}, "no templates 'nonsense'"),
        ({"classes": ["a", "b"], "templates": "openai"}, "name it as `dataset:`"),
        ({"dataset": "dtd", "templates": ["a {}"], "template_set": "openai"}, "not OpenAI's"),
        ({"classes": ["a", "b"], "words": {"c": "sea"}}, "no class 'c'"),
        ({"classes": ["a", "b"], "template_set": ["openai"]}, "name it as `dataset:`"),
        ({"dataset": "dtd", "template_set": ["openai"]}, "no templates"),
        ({"dataset": "dtd", "template_set": "openai", "templates": 5}, "not OpenAI's"),
        ({"dataset": "mnist", "classes": [["a"], ["b"]]}, "classes"),
        ({"dataset": "mnist", "classes": 3}, "classes"),
    ],
)
def test_prompts_that_nobody_published_are_refused(entry, words):
    with pytest.raises(ValueError, match=words):
        Task(name="task", domain="in", **entry)


@pytest.fixture
def brought(tmp_path):
    """A base with its text encoder and two experts named as FusionBench names them."""
    torch.manual_seed(5)
    model = CLIP(**TEXT)
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "open_clip_config.json").write_text(json.dumps({"model_cfg": TEXT}))
    save_file({n: t.contiguous() for n, t in model.state_dict().items()}, tmp_path / "base/open_clip_model.safetensors")
    for number, name in enumerate(("dtd", "oxford-iiit-pet")):
        folder = tmp_path / f"clip-vit-base-patch32_{name}"
        folder.mkdir()
        save_file(moved(visual_of(model), number), folder / "model.safetensors")
    return tmp_path


def request_of(brought, **more):
    experts = [brought / f"clip-vit-base-patch32_{name}" for name in ("dtd", "oxford-iiit-pet")]
    return ask(brought, brought / "base", *experts, **more)


def test_an_import_takes_the_prompts_of_its_experts_and_says_so(brought):
    summary = import_zoo(request_of(brought), silent)
    zoo = Zoo.open(str(brought / "zoo"))
    assert [task.template_set for task in zoo.manifest.tasks] == ["fusionbench", "fusionbench"]
    assert yaml.safe_load((zoo.folder / "zoo.yaml").read_text())["tasks"][1]["templates"] == "fusionbench"
    origin = "FusionBench's (read: clip-vit-base-patch32_dtd is named like FusionBench's experts)"
    assert zoo.manifest.backbone.origins["templates"] == origin
    assert [fact["value"] for fact in summary["facts"] if fact["name"] == "templates"] == ["FusionBench's"]
    assert any("templates: FusionBench's" in line for line in check_zoo(str(zoo.folder), silent))
    assert heads_in_words(zoo.folder, zoo.manifest, "dtd") == "zero-shot, built with FusionBench's 8 templates"


def test_prompts_can_be_given_by_name_or_as_a_file(brought):
    import_zoo(request_of(brought, templates="openai"), silent)
    manifest = read_manifest(brought / "zoo")
    assert manifest.task_table["oxford_iiit_pet"].words["bengal"] == ("Bengal",)
    assert manifest.backbone.origins["templates"] == "OpenAI's (given: openai)"
    own = brought / "own.yaml"
    own.write_text("dtd: {templates: ['seen close: {}', 'far: {}'], words: {dotted: [dotted, spotty]}}\n")
    import_zoo(request_of(brought, templates=str(own), out=str(brought / "second")), silent)
    found = read_manifest(brought / "second").task_table
    assert prompts(found["dtd"])[10] == ["seen close: dotted", "far: dotted", "seen close: spotty", "far: spotty"]
    assert [task.template_set for task in found.values()] == ["", "openai"]
    lines = brought / "own.txt"
    lines.write_text("a {} thing\n\nthe {} thing\n")
    words = [
        "zoo",
        "import",
        "--base",
        str(brought / "base"),
        "--preprocess",
        "openai",
        "--out",
        str(brought / "third"),
    ]
    words += ["--expert", str(brought / "clip-vit-base-patch32_dtd"), "--templates", str(lines)]
    result = CliRunner().invoke(app, words)
    assert f"templates: own (given: {lines})" in result.output
    assert read_manifest(brought / "third").task_table["dtd"].templates == ("a {} thing", "the {} thing")


def test_where_a_set_has_no_templates_for_a_data_set_it_is_said(brought):
    there = "OpenAI's set has none for svhn, in its place: FusionBench's"
    (brought / "clip-vit-base-patch32_oxford-iiit-pet").rename(brought / "clip-vit-base-patch32_svhn")
    experts = [brought / f"clip-vit-base-patch32_{name}" for name in ("dtd", "svhn")]
    summary = import_zoo(ask(brought, brought / "base", *experts, templates="openai"), silent)
    (fact,) = [fact for fact in summary["facts"] if fact["name"] == "templates"]
    assert (fact["value"], fact["origin"]) == ("OpenAI's for dtd; FusionBench's for svhn", f"given: openai; {there}")
    assert there in read_manifest(brought / "zoo").backbone.origins["templates"]
    document = yaml.safe_load((brought / "zoo" / "zoo.yaml").read_text())
    document["tasks"] = [{**task, "templates": []} for task in document["tasks"]]
    (brought / "zoo" / "zoo.yaml").write_text(yaml.safe_dump({**document, "templates": "openai"}))
    assert any(there in line for line in check_zoo(str(brought / "zoo"), silent))


def test_a_new_zoo_says_whose_templates_stand_for_those_asked_for(brought, tmp_path):
    import_zoo(request_of(brought), silent)
    labels = np.arange(20) % 10
    np.savez(tmp_path / "svhn.npz", test_x=np.zeros((20, 16, 16, 3), np.uint8), test_y=labels)
    said = []
    options = NewZooOptions(templates="openai", outside=("svhn",))
    new_zoo(tmp_path / "new", str(brought / "zoo"), tmp_path / "svhn.npz", options, say=said.append)
    whose = "FusionBench's (given: openai; OpenAI's set has none for svhn, in its place: FusionBench's)"
    assert f"Templates: {whose}" in said
    assert read_manifest(tmp_path / "new").backbone.origins["templates"] == whose


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- no place\n", "needs exactly one"),
        ("birds: ['a {}']\n", "names a task 'birds'"),
        ("dtd: {templates: ['a {}'], words: {green: verdant}}\n", "no class 'green'"),
        ("dtd: {template: ['a {}']}\n", "unknown key"),
    ],
)
def test_own_prompts_that_cannot_be_used_are_refused(brought, text, words):
    (brought / "own.yaml").write_text(text)
    found = survey(request_of(brought, templates=str(brought / "own.yaml")), silent)
    assert [fault for fault in found.faults if words in fault.text], found.faults
    found = survey(request_of(brought, templates="opnai"), silent)
    assert [fault for fault in found.faults if "Did you mean 'openai'?" in fault.text]


def test_files_of_templates(tmp_path):
    assert set(PROMPT_SETS) == {"openai", "fusionbench"}
    (tmp_path / "a.json").write_text('["a {}", "the {}"]')
    assert read_prompt_file(tmp_path / "a.json") == PromptSet(templates=("a {}", "the {}"))
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ZooError, match="no text in UTF-8"):
        read_prompt_file(tmp_path / "a.txt")
