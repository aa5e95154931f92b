"""Text models teach text models, each with its own vocabulary; experts of texts start from another zoo's base."""

import json
from shutil import copytree

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from engine.errors import EngineError
from engine.manifest import locate_zoo, read_manifest
from engine.pipeline.local import align_experts, finetune_experts, run_recipe
from engine.pipeline.planners import plan_request
from engine.pipeline.zoos.teacher import teacher_logits
from engine.recipe import parse_recipe
from engine.store import Store
from engine.zoo.folder import Zoo
from tests.pipeline.test_finetune_texts import imported
from tests.tiny_text_zoo import make_text_zoo, model
from tests.tiny_zoo import make_zoo

TASK = "sentiment"
FEW = {"steps": 6, "batch_size": 16, "learning_rate": 0.002}
WORDS = "bert.embeddings.word_embeddings.weight"


def rewritten(folder, change):
    document = yaml.safe_load((folder / "zoo.yaml").read_text())
    change(document)
    (folder / "zoo.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return folder


def task_of(document):
    return next(task for task in document["tasks"] if task["name"] == TASK)


@pytest.fixture(scope="module")
def mini(tmp_path_factory):
    """mini_text with the validation texts of one task as training texts; not to be changed."""
    folder = copytree(locate_zoo("mini_text"), tmp_path_factory.mktemp("mini") / "zoo")
    classes = read_manifest(folder).task_table[TASK].classes
    data = Zoo.open("mini_text").data[TASK]
    with (folder / "data" / "taught.jsonl").open("w") as file:
        for split, named, count in (("val", "train", 96), ("test", "test", 40)):
            for (text, second), label in zip(data.texts(split)[:count], data.labels(split)[:count], strict=True):
                line = {"split": named, "text": text, "text_pair": second, "label": classes[label]}
                file.write(json.dumps(line) + "\n")
    return rewritten(folder, lambda document: task_of(document).update(data="data/taught.jsonl"))


@pytest.fixture
def student(mini, tmp_path):
    return copytree(mini, tmp_path / "student")


@pytest.fixture
def foreign(mini, tmp_path):
    """The same models with words in another order, in vocabulary and embeddings, and classes of a task as well."""
    folder = copytree(mini, tmp_path / "foreign")
    document = json.loads((folder / "vocabulary.json").read_text())
    count = len(document["words"])
    order = torch.cat([torch.arange(5), 5 + torch.randperm(count - 5, generator=torch.Generator().manual_seed(1))])
    document["words"] = [document["words"][place] for place in order]
    (folder / "vocabulary.json").write_text(json.dumps(document))
    for path in (folder / "base.safetensors", folder / "multitask.safetensors", *(folder / "experts").iterdir()):
        tensors = load_file(path)
        save_file(tensors | {WORDS: tensors[WORDS][order].contiguous()}, path)
    heads = load_file(folder / "heads.safetensors")
    save_file(heads | {TASK: heads[TASK].flip(0).contiguous()}, folder / "heads.safetensors")

    def other(document):
        document["name"] = "foreign"
        task_of(document)["classes"].reverse()

    return rewritten(folder, other)


def asked(student, teacher, **more):
    taught = {"zoo": str(teacher), "model": TASK, "weight": 1.0, **more}
    return {"zoo": str(student), "tasks": [TASK], "config": FEW, "teacher": taught}


def test_a_student_learns_from_a_text_model(command, student):
    options = ("--task", TASK, "--steps", 30, "--batch-size", 16, "--learning-rate", 0.002, "--weight", 1.0, "-q")
    code, out, err = command("zoo", "distill", student, "--teacher", f"mini_text:{TASK}", *options)
    assert (code, err) == (0, "")
    assert "training texts" in out
    assert f"{TASK}-distilled: " in out
    record = json.loads((student / "build.json").read_text())["finetuned"][f"{TASK}-distilled"]
    assert record["images"]["teacher"] > 90
    assert record["curve"][-1][1] < 0.8 * record["curve"][1][1], "the divergence falls, without any label"
    assert read_manifest(student).expert_table[f"{TASK}-distilled"].method == "distilled"


def test_a_teacher_reads_with_its_own_vocabulary(student, foreign, tmp_path):
    """Words and classes in another order change nothing that is learned, to the bit."""
    found = []
    for number, teacher in enumerate(("mini_text", foreign)):
        finetune_experts(asked(student, teacher) | {"replace": True}, Store(tmp_path / str(number)))
        found.append(load_file(student / "experts" / f"{TASK}-distilled.safetensors"))
    one, two = found
    base = load_file(student / "base.safetensors")
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["bert.pooler.dense.weight"], base["bert.pooler.dense.weight"].float())


@pytest.mark.parametrize(("teacher", "pupil"), [("t5", "roberta"), ("distilbert", "t5")])
def test_families_teach_each_other(teacher, pupil, tmp_path):
    zoos = {}
    for kind in (teacher, pupil):
        (tmp_path / kind).mkdir()
        zoos[kind] = imported(kind, tmp_path / kind)
    store = Store(tmp_path / "store")
    taught = {"zoo": str(zoos[teacher]), "model": "answers"}
    request = {"zoo": str(zoos[pupil]), "tasks": ["answers"], "config": FEW | {"batch_size": 6}, "teacher": taught}
    plan = plan_request("finetune", request, store)
    params = next(step for step in plan.steps if step.name == "finetune").params
    assert params.wording == ({"answers": ["no", "yes"]} if teacher == "t5" else None)
    record = finetune_experts(request, store)["answers-distilled"]
    theirs = Zoo.open(str(zoos[teacher]))
    home = Zoo.open(str(zoos[pupil]))
    rows = range(6)
    cpu = torch.device("cpu")
    logits = teacher_logits(params.teacher, str(theirs.folder), home.data["answers"], rows, cpu, lambda *_: None)
    own = theirs.data["answers"].samples("train", rows)
    again = teacher_logits(params.teacher, str(theirs.folder), theirs.data["answers"], rows, cpu, lambda *_: None)
    assert own.shape[0] == len(logits) == 6
    assert torch.equal(logits, again), "the same texts, wherever they lie"
    assert record["teacher"]["model"] == "answers"


def other_classes(foreign):
    rewritten(foreign, lambda document: task_of(document)["classes"].__setitem__(0, "sarcastic"))


def nothing(foreign):
    pass


FAULTS = {
    "classes": (other_classes, {}, "The teacher has 4 classes for 'sentiment'.*they differ in .*sarcastic"),
    "model": (nothing, {"model": "sentimant"}, "Did you mean 'sentiment'"),
    "task": (nothing, {"task": "topic"}, "The teacher has 8 classes for 'topic'"),
    "kind": (nothing, {"zoo": "mini8"}, "Teachers are taken from zoos of the same kind of data.*'mini8' one of images"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_teacher_of_texts_that_does_not_fit_is_refused_with_the_reason(fault, student, foreign, tmp_path):
    spoil, change, reason = FAULTS[fault]
    spoil(foreign)
    with pytest.raises(EngineError, match=reason):
        plan_request("finetune", asked(student, foreign, **change), Store(tmp_path / "store"))


def test_a_teacher_whose_prompt_names_other_columns_is_refused(student, foreign, tmp_path):
    home, store = Zoo.open(str(student)), Store(tmp_path / "store")
    rewritten(foreign, lambda document: task_of(document).update(prompt="What of {review}?"))
    request = asked(student, foreign)
    with pytest.raises(EngineError, match="review"):
        plan_request("finetune", request, store)
    rewritten(foreign, lambda document: task_of(document).update(prompt="What of {text}?"))
    plan = plan_request("finetune", request, store)
    params = next(step for step in plan.steps if step.name == "finetune").params
    assert params.wording == {"prompt": "What of {text}?"}
    seen = home.data[TASK].seen_from(foreign, read_manifest(foreign).task_table[TASK])
    assert seen.texts("train", [0]) == [(f"What of {home.data[TASK].texts('train', [0])[0][0]}?", "")]


@pytest.fixture
def zoo(tmp_path):
    return make_text_zoo(tmp_path / "tiny", experts=("alpha", "beta"), train=24)


@pytest.fixture
def twin(tmp_path):
    """The same architecture and vocabulary with a base of another seed."""
    folder = rewritten(make_text_zoo(tmp_path / "other"), lambda document: document.update(name="other"))
    save_file({f"bert.{n}": t.clone() for n, t in model(7).state_dict().items()}, folder / "base.safetensors")
    return folder


def test_an_expert_of_texts_starts_from_another_base_is_aligned_and_merged(zoo, twin, store):
    config = {"steps": 6, "batch_size": 12}
    request = {"zoo": str(zoo), "tasks": ["alpha"], "config": config, "start": {"zoo": str(twin)}}
    record = finetune_experts(request, store)["alpha-other_base"]
    assert record["start"] == "other"
    expert = read_manifest(zoo).expert_table["alpha-other_base"]
    theirs, original = load_file(zoo / expert.base), load_file(twin / "base.safetensors")
    assert theirs.keys() == original.keys()
    assert all(torch.equal(tensor, original[name]) for name, tensor in theirs.items())
    recipe = parse_recipe({"zoo": str(zoo), "experts": ["alpha-other_base", "beta"]})
    with pytest.raises(EngineError, match="zoo align tiny-text --expert alpha-other_base"):
        run_recipe(recipe, store)
    assert align_experts({"zoo": str(zoo)}, store)["alpha-other_base"]["apart"] < 1e-10
    assert set(run_recipe(recipe, store).accuracy["merged"]) >= {"alpha", "beta"}


def other_words(twin, tmp_path):
    words = json.loads((twin / "vocabulary.json").read_text())
    words["words"][-2:] = reversed(words["words"][-2:])
    (twin / "vocabulary.json").write_text(json.dumps(words))
    return twin


def pictures(twin, tmp_path):
    return make_zoo(tmp_path / "pictures")


def longer(twin, tmp_path):
    config = json.loads((twin / "config.json").read_text())
    (twin / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    return twin


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (other_words, "its texts are read with another vocabulary"),
        (
            pictures,
            "Bases are taken from zoos of the same kind of data; 'tiny-text' is one of texts, 'tiny' one of images",
        ),
        (longer, "its `num_hidden_layers` is 3, the zoo's 2"),
    ],
)
def test_a_base_that_experts_of_texts_cannot_start_from_is_refused(spoil, reason, zoo, twin, tmp_path, store):
    place = spoil(twin, tmp_path)
    request = {"zoo": str(zoo), "tasks": ["alpha"], "config": {"steps": 2}, "start": {"zoo": str(place)}}
    with pytest.raises(EngineError, match=reason):
        plan_request("finetune", request, store)
