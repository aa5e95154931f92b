"""The command ``selfcheck`` on folders that are right, tampered with, incomplete or no references at all."""

import json
import lzma
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from engine.__main__ import app
from engine.catalog import TRANSFORMS, params_of
from engine.errors import ReferenceFolderError
from engine.selfcheck import check_folder, reference
from engine.selfcheck.measure import Tolerance, measure
from engine.selfcheck.reference import CalibratorReference, MergingReference
from engine.selfcheck.run import CHECKS

SHIPPED = Path(__file__).parents[1] / "reference"
SOME = ("task_arithmetic_l0.3", "toyfull_ties_k20_sum_l0.3", "lwptv_edge_cases", "breadcrumbs_mergekit_d0.3_g0.05_l0.3")
SURGERY = "surgery_forward"


def write_index(folder, entries):
    (folder / "index.json").write_text(json.dumps({"format": 1, "entries": entries}))


def unpacked(file, target):
    """Copy a file that is shipped compressed, as it was before."""
    target.write_bytes(lzma.decompress(Path(f"{file}.xz").read_bytes()))


@pytest.fixture
def folder(tmp_path):
    """A few references of both forms; those of the calibrators compressed, as all are shipped."""
    merging, calibrators = tmp_path / "merging", tmp_path / "calibrators"
    shutil.copytree(SHIPPED / "merging" / "inputs", merging / "inputs")
    (merging / "outputs").mkdir()
    calibrators.mkdir()
    shipped = json.loads((SHIPPED / "merging" / "index.json").read_text())["entries"]
    entries = [entry for entry in shipped if entry["name"] in SOME]
    for entry in entries:
        if "file" in entry:
            unpacked(SHIPPED / "merging" / entry["file"], merging / entry["file"])
    write_index(merging, entries)
    for suffix in (".json", ".safetensors.xz"):
        shutil.copy((SHIPPED / "calibrators" / SURGERY).with_suffix(suffix), calibrators)
    return tmp_path


def entries_of(folder):
    return json.loads((folder / "merging" / "index.json").read_text())["entries"]


def command(folder, *options):
    result = CliRunner().invoke(app, ["selfcheck", "--reference", str(folder), *options])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def lines_of(output, name):
    return [line for line in output.splitlines() if line.split()[:1] == [name]]


def test_a_right_folder_passes_and_every_reference_is_named(folder):
    code, output = command(folder)
    assert code == 0, output
    for name in (*SOME, SURGERY):
        (line,) = lines_of(output, name)
        assert " ok" in line
        assert line.count("(") >= 2, "an error and a share for each precision"
    assert "merging: 4 references, 4 reproduced, 0 missed, 0 not reproducible (reasons above), 0 unknown" in output
    assert "calibrators: 1 references, 1 reproduced" in output
    assert "zeroes by mistake" in output


@pytest.mark.parametrize("part", ["merging", "calibrators"])
def test_each_part_may_be_given_alone(folder, part):
    code, output = command(folder / part)
    assert code == 0
    assert {outcome.group for outcome in check_folder(folder / part)} == {part}
    assert output.count("references,") == 1


def nudged(path, name, by):
    if not path.exists():
        unpacked(path, path)
    tensors = load_file(path)
    tensors[name].view(-1)[0] += by
    save_file(tensors, path)


def test_a_changed_number_is_a_miss_in_the_precision_that_sees_it(folder):
    nudged(folder / "merging/outputs/task_arithmetic_l0.3.safetensors", "visual.proj", 1e-8)
    outcomes = {outcome.name: outcome for outcome in check_folder(folder)}
    tampered = outcomes.pop("task_arithmetic_l0.3")
    assert tampered.verdict == "missed"
    assert tampered.measured["float64"].share > 1 >= tampered.measured["float32"].share
    assert tampered.measured["float64"].error == pytest.approx(1e-8, rel=1e-6)
    assert "float64: visual.proj" in tampered.reason
    assert {outcome.verdict for outcome in outcomes.values()} == {"reproduced"}
    code, output = command(folder)
    assert code == 1
    assert "MISSED" in lines_of(output, "task_arithmetic_l0.3")[0]
    assert "4 references, 3 reproduced, 1 missed" in output


def test_changed_weights_and_inline_values_and_calibrators_are_missed(folder):
    nudged(folder / "merging/inputs/toyfull_expert1.safetensors", "visual.proj", 0.25)
    entries = entries_of(folder)
    edges = next(entry for entry in entries if entry["name"] == "lwptv_edge_cases")
    edges["values"]["kept_for_L_eta0.7"]["158"] += 1
    write_index(folder / "merging", entries)
    nudged(folder / f"calibrators/{SURGERY}.safetensors", "grad_W_up", 1e-3)
    missed = {outcome.name for outcome in check_folder(folder) if outcome.verdict == "missed"}
    assert missed == {"toyfull_ties_k20_sum_l0.3", "lwptv_edge_cases", SURGERY}


def test_unknown_references_fail_unless_allowed(folder):
    write_index(folder / "merging", [*entries_of(folder), {"name": "something_new", "tolerance": {}}])
    code, output = command(folder)
    assert code == 1
    assert "UNKNOWN" in lines_of(output, "something_new")[0]
    assert command(folder, "--allow-unknown")[0] == 0


def lose_file(folder):
    (folder / "merging/outputs/task_arithmetic_l0.3.safetensors").unlink()


def cut_file(folder):
    path = folder / "merging/outputs/task_arithmetic_l0.3.safetensors"
    path.write_bytes(path.read_bytes()[:100])


def compress_half(folder):
    path = folder / "merging/outputs/task_arithmetic_l0.3.safetensors"
    content = lzma.compress(path.read_bytes())
    path.unlink()
    path.with_name(f"{path.name}.xz").write_bytes(content[: len(content) // 2])


def compress_something_else(folder):
    path = folder / "merging/outputs/task_arithmetic_l0.3.safetensors"
    path.rename(path.with_name(f"{path.name}.xz"))


def lose_tolerance(folder):
    entries = entries_of(folder)
    del entries[0]["tolerance"]["float32"]
    write_index(folder / "merging", entries)


def lose_tensor(folder):
    path = folder / "merging/outputs/task_arithmetic_l0.3.safetensors"
    tensors = load_file(path)
    del tensors["visual.proj"]
    save_file(tensors, path)


def point_outside(folder):
    entries = entries_of(folder)
    entries[0]["file"] = "../../secret.safetensors"
    write_index(folder / "merging", entries)


def not_a_number(folder):
    nudged(folder / "merging/outputs/task_arithmetic_l0.3.safetensors", "visual.proj", float("nan"))


DAMAGE = {
    lose_file: "cannot be read",
    cut_file: "is damaged",
    compress_half: "safetensors.xz is damaged",
    compress_something_else: "safetensors.xz is damaged",
    lose_tolerance: "has no tolerance",
    lose_tensor: "names differ, such as visual.proj",
    point_outside: "outside",
    not_a_number: "not finite",
}


@pytest.mark.parametrize("spoil", DAMAGE, ids=lambda f: f.__name__)
def test_a_damaged_reference_is_missed_with_the_reason_and_the_others_go_on(folder, spoil):
    spoil(folder)
    code, output = command(folder)
    assert code == 1
    assert DAMAGE[spoil] in lines_of(output, "task_arithmetic_l0.3")[0]
    assert "3 reproduced, 1 missed" in output


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), AttributeError("no such thing")])
def test_a_reference_on_which_the_engine_fails_is_missed_and_the_others_go_on(folder, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setitem(CHECKS, "merging", {**CHECKS["merging"], "task_arithmetic_l0.3": fail})
    outcomes = {outcome.name: outcome for outcome in check_folder(folder / "merging")}
    failed = outcomes.pop("task_arithmetic_l0.3")
    assert (failed.verdict, type(error).__name__ in failed.reason) == ("missed", True)
    assert {outcome.verdict for outcome in outcomes.values()} == {"reproduced"}


def test_experts_come_by_number(folder):
    inputs = folder / "merging" / "inputs"
    for number in range(4, 11):
        (inputs / f"toy_expert{number}.safetensors").touch()
    assert MergingReference(folder / "merging").experts == tuple(f"expert{number}" for number in range(11))


def test_a_compressed_file_is_not_expanded_without_bound(folder, monkeypatch):
    monkeypatch.setattr(reference, "LARGEST", 1000)
    (outcome,) = (found for found in check_folder(folder) if found.name == SURGERY)
    assert outcome.verdict == "missed"
    assert "expands to more than" in outcome.reason


FOLDERS = {
    "missing": (lambda path: path.rmdir(), "There is no folder"),
    "empty": (lambda path: None, "holds no reference numbers"),
    "not json": (lambda path: (path / "index.json").write_text("{"), "is not JSON"),
    "a list": (lambda path: (path / "index.json").write_text("[]"), "no list 'entries'"),
    "nameless": (lambda path: write_index(path, [{"file": "x"}]), "'name'"),
    "twice": (lambda path: write_index(path, [{"name": "x"}, {"name": "x"}]), "two entries of one name"),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_that_is_none_of_references_is_refused(tmp_path, case):
    folder = tmp_path / "given"
    folder.mkdir()
    spoil, message = FOLDERS[case]
    spoil(folder)
    with pytest.raises(ReferenceFolderError, match=message):
        check_folder(folder)


def test_tolerances_in_words(tmp_path):
    def stated(text):
        (tmp_path / "x.json").write_text(json.dumps({"tolerance": text}))
        found = CalibratorReference(tmp_path)
        return found.tolerance("x", "float64"), found.tolerance("x", "float32")

    assert stated("float64 rtol 1e-10; float32 rtol 1e-4 atol 1e-6") == (Tolerance(1e-10, 1e-12), Tolerance(1e-4, 1e-6))
    assert stated("float64 rtol 1e-8 after 18 Adam steps; float32 atol 2e-6")[1] == Tolerance(1e-4, 2e-6)
    assert stated("exact") == (Tolerance(0, 0), Tolerance(1e-6, 1e-6))


def test_measuring_says_where_and_how_far():
    got = {"a": torch.tensor([1.0, 2.0]), "b": 5.0}
    found = measure(got, {"a": [1.0, 2.5], "b": torch.tensor([5.0])}, Tolerance(0.1, 0.25))
    assert (found.error, found.share, found.where, found.within) == (0.5, 1.0, "a", True)
    assert not measure(got, {"a": [1.0, 2.5], "b": [5.0]}, Tolerance(0.0, 0.4)).within
    assert measure(got, {"a": [1.0, 2.0]}, Tolerance(1, 1)).error == float("inf")
    assert "shape" in measure({"a": torch.zeros(2)}, {"a": torch.zeros(3)}, Tolerance(1, 1)).where
    assert measure({"a": torch.zeros(0)}, {"a": torch.zeros(0)}, Tolerance(0, 0)).within


def test_order_of_the_network_comes_from_the_folder():
    shipped = MergingReference(SHIPPED / "merging")
    names = shipped.model("pretrained", "toyfull").names
    assert [name for name in names if name in shipped.order] == shipped.order


def test_later_parameters_leave_older_keys_alone():
    row = TRANSFORMS["lwptv"]
    assert params_of(row, {"eta": 0.7}).model_dump(mode="json") == {"eta": 0.7, "count_frozen": 0}
    assert params_of(row, {"shared": True}).model_dump(mode="json") == params_of(row, {}).model_dump(mode="json")
    changed = params_of(row, {"shared": False}).model_dump(mode="json")
    assert changed == {"eta": 0.7, "count_frozen": 0, "shared": False}
    assert not params_of(row, changed).shared
