"""The command line on a small made zoo: what people type, and what they get."""

import csv

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from tests.tiny_zoo import make_zoo


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    return make_zoo(tmp_path_factory.mktemp("zoo") / "tiny")


@pytest.fixture
def recipe(zoo, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({"zoo": str(zoo), "merge": {"method": "task_arithmetic"}}))
    return path


def test_run_prints_a_table_and_refuses_a_full_folder(command, recipe, tmp_path):
    code, out, _ = command("run", recipe, "--out", tmp_path / "run", "-q")
    assert code == 0
    assert "pretrained" in out
    assert "on 24 evaluation images a task, protocol held out, seed 0" in out
    code, _, err = command("run", recipe, "--out", tmp_path / "run", "-q")
    assert code == 1
    assert "not empty" in err


def test_merging_files_adds_scaled_task_vectors(command, zoo, tmp_path):
    experts = [zoo / "experts" / f"{name}.safetensors" for name in ("alpha", "beta")]
    named = [part for path in experts for part in ("--expert", path)]
    out = tmp_path / "merged.safetensors"
    code, text, _ = command("merge", "--base", zoo / "base.safetensors", *named, "--param", "scaling=0.5", "--out", out)
    assert code == 0
    assert "Wrote" in text
    base, merged = load_file(zoo / "base.safetensors"), load_file(out)
    moved = [load_file(path) for path in experts]
    for name, tensor in base.items():
        expected = tensor + 0.5 * sum(expert[name] - tensor for expert in moved)
        torch.testing.assert_close(merged[name], expected, rtol=1e-5, atol=1e-6)


def test_experts_files_of_one_name_are_all_merged(command, zoo, tmp_path):
    """Of three files two are called alike, and the third as a number would call one of these."""
    base = load_file(zoo / "base.safetensors")
    moved = [load_file(zoo / "experts" / f"{name}.safetensors") for name in ("alpha", "beta", "alpha")]
    moved[2] = {name: base[name] - 2 * (tensor - base[name]) for name, tensor in moved[2].items()}
    places = [tmp_path / name for name in ("a/model.safetensors", "b/model.safetensors", "model_1.safetensors")]
    for place, tensors in zip(places, moved, strict=True):
        place.parent.mkdir(exist_ok=True)
        save_file(tensors, place)
    for order in (places, places[::-1]):
        named = [part for path in order for part in ("--expert", path)]
        out = tmp_path / f"{order[0].stem}.out.safetensors"
        asked = ("--param", "scaling=0.5", "--out", out, "--receipt")
        called = command("merge", "--base", zoo / "base.safetensors", *named, *asked)
        assert called.code == 0, called.err
        merged = load_file(out)
        for name, tensor in base.items():
            expected = tensor + 0.5 * sum(expert[name] - tensor for expert in moved)
            torch.testing.assert_close(merged[name], expected, rtol=1e-5, atol=1e-6)


def test_of_many_files_the_one_that_cannot_be_merged_is_named(command, zoo, tmp_path):
    good = zoo / "experts" / "alpha.safetensors"
    tensors = load_file(good)
    name = "visual.proj"
    damaged = {
        "head.safetensors": ({"head.bias": torch.zeros(3)}, "names"),
        "nan.safetensors": (tensors | {name: tensors[name] * torch.nan}, "Choose other files"),
    }
    for file, (content, word) in damaged.items():
        save_file(content, tmp_path / file)
        named = [part for path in (good, tmp_path / file) for part in ("--expert", path)]
        out = tmp_path / "merged.safetensors"
        code, _, err = command("merge", "--base", zoo / "base.safetensors", *named, "--out", out)
        assert code == 1
        assert str(tmp_path / file) in err
        assert str(good) not in err
        assert word in err
        assert not out.exists()


def test_numbers_that_grow_too_large_are_no_fault_of_a_file(command, zoo, tmp_path):
    huge = tmp_path / "huge.safetensors"
    save_file(
        {name: torch.full_like(tensor, 2e38) for name, tensor in load_file(zoo / "base.safetensors").items()}, huge
    )
    named = ["--expert", huge] * 2
    code, _, err = command(
        "merge", "--base", zoo / "base.safetensors", *named, "--param", "scaling=1", "--out", tmp_path / "m.safetensors"
    )
    assert code == 1
    assert "which no file does" in err


def test_an_expert_that_is_given_twice_is_warned_about(command, zoo, tmp_path):
    named = ["--expert", zoo / "experts" / "alpha.safetensors"] * 2
    called = command("merge", "--base", zoo / "base.safetensors", *named, "--out", tmp_path / "merged.safetensors")
    assert called.code == 0
    assert "the same weights, which count 2 times" in called.out + called.err


def test_merging_files_of_nothing_is_explained(command, zoo):
    code, _, err = command("merge", "--base", zoo / "base.safetensors")
    assert code == 1
    assert "--expert" in err


def test_a_recipe_merges_to_the_same_weights_as_a_run(command, recipe, tmp_path):
    assert command("run", recipe, "--out", tmp_path / "run", "-q")[0] == 0
    assert "give a name that ends in .safetensors" in command("merge", recipe, "--out", tmp_path / "m.txt")[2]
    called = command("merge", recipe, "--out", tmp_path / "m.safetensors")
    assert called[0] == 0
    assert f"Wrote {tmp_path / 'm.receipt.json'}" in called[1]
    one, other = load_file(tmp_path / "run" / "merged.safetensors"), load_file(tmp_path / "m.safetensors")
    assert all(torch.equal(one[name], other[name]) for name in one)
    for option in (("--method", "ties"), ("--param", "scaling=0.9"), ("--transform", "dare"), ("--expert", "e.pt")):
        code, _, err = command("merge", recipe, *option, "--out", tmp_path / "other.safetensors")
        assert (code, "leave --expert, --method, --param and --transform out" in err) == (1, True), option


def test_runs_can_be_listed_shown_exported_and_deleted(command, recipe, tmp_path):
    command("run", recipe, "-q")
    listed = command("runs", "list")[1]
    run = listed.split()[0]
    assert "finished" in listed
    assert "merged" in command("runs", "show", run)[1]
    assert command("export", run, "--to", tmp_path / "metrics.csv")[0] == 0
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["state"] for row in rows} == {"pretrained", "merged", "expert"}
    assert {row["n"] for row in rows} == {"24"}
    assert command("export", run, "--to", tmp_path / "table.tex")[0] == 0
    assert r"\begin{tabular}" in (tmp_path / "table.tex").read_text()
    assert command("runs", "delete", run)[0] == 0
    assert "no runs" in command("runs", "list")[1]
    assert f"`runs delete --undo {run}` brings it back" in command("runs", "show", run)[1]
    assert command("runs", "delete", "--undo", run)[0] == 0
    assert "is not deleted" in command("runs", "delete", "--undo", run)[2]
    assert run in command("runs", "list")[1]
    assert "No run is found" in command("runs", "list", "--search", "xyzzy")[1]
    assert command("runs", "list", "--parent", "nope")[0] == 1


def test_a_sweep_prints_its_table_and_marks_the_best(command, recipe, tmp_path):
    out = tmp_path / "sweep.csv"
    code, printed, _ = command("sweep", recipe, "--set", "merge.params.scaling=0.1:0.3:0.1", "--out", out, "-q")
    assert code == 0
    assert printed.count("*") == 1
    assert "chosen on 12 labelled validation images" in printed
    with out.open() as file:
        rows = [row for row in csv.DictReader(file) if row["state"] == "merged"]
    assert [float(row["merge.params.scaling"]) for row in rows] == pytest.approx([0.1, 0.2, 0.3])
    assert all(row["in"] and row["h_score"] and row["validation_in"] for row in rows)
    assert [row["best"] for row in rows].count("True") == 1
    listed = command("runs", "list")[1]
    assert "sweep: Scaling coefficient λ of Task Arithmetic" in listed
    code, _, err = command("sweep", recipe, "--set", "merge.params.scaling=9", "-q")
    assert code == 1
    assert "less than or equal to 2" in err


def test_a_zoo_is_checked_and_every_fault_named_at_once(command, tmp_path):
    folder = make_zoo(tmp_path / "tiny")
    code, out, _ = command("zoo", "check", folder)
    assert code == 0
    assert "alpha" in out
    (folder / "experts" / "alpha.safetensors").write_bytes(b"not weights")
    (folder / "data" / "beta.npz").unlink()
    code, _, err = command("zoo", "check", folder)
    assert code == 1
    assert "2 faults" in err
    assert "alpha" in err
    assert "beta" in err
    assert "Traceback" not in err


def test_a_first_manifest_is_drafted_from_the_files(command, tmp_path):
    folder = make_zoo(tmp_path / "tiny")
    (folder / "zoo.yaml").unlink()
    code, _, err = command("zoo", "init", folder)
    assert code == 1
    assert "--preprocess" in err
    assert command("zoo", "init", folder, "--preprocess", "openai")[0] == 0
    document = yaml.safe_load((folder / "zoo.yaml").read_text())
    assert [expert["name"] for expert in document["experts"]] == ["alpha", "beta", "gamma"]
    assert {task["name"]: task["domain"] for task in document["tasks"]}["outside"] == "out"
    assert len(document["tasks"][0]["classes"]) == 3
    assert command("zoo", "check", folder)[0] == 0
    code, _, err = command("zoo", "init", folder)
    assert code == 1
    assert "exists already" in err


def test_a_stopped_command_says_so(command, recipe, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("engine.pipeline.local.run_recipe", interrupted)
    assert command("run", recipe, "-q") == (130, "", "Stopped.\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("experiment", "--foreseen"), "Name an experiment, or 'all'"),
        (("experiment", "scaling", "--judge", __file__), "test_commands.py holds no result as experiments have it now"),
        (("zoo", "check", "mini9"), "There is no zoo 'mini9', nor a folder of that name with a zoo.yaml. Did you mean"),
    ],
)
def test_what_is_asked_for_wrongly_is_refused_with_what_is_meant(command, arguments, said):
    code, _, err = command(*arguments)
    assert code == 1
    assert said in err


def test_a_recipe_that_is_empty_and_a_projection_of_no_kind_are_refused(command, recipe, tmp_path):
    assert "give tsne, umap, pca or none" in command("run", recipe, "--projection", "foo")[2]
    (tmp_path / "empty.yaml").write_text("")
    assert "is empty; a mapping" in command("run", tmp_path / "empty.yaml")[2]
