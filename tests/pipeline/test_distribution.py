"""The wheel, installed on its own, loads what runs left behind and computes what the engine computes."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import engine
from engine.errors import CalibrationError, EngineError
from engine.pipeline.local import run_recipe
from engine.recipe import parse_recipe
from engine.store import Store
from tests.tiny_zoo import make_zoo

ROOT = Path(__file__).resolve().parents[2]
CALIBRATORS = ("surgery", "prob_surgery", "interv_merge", "surgery_v2", "surgery_joint")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A tiny zoo and two runs on it: one merged model with every calibrator, one with weights for each task."""
    folder = tmp_path_factory.mktemp("runs")
    zoo = make_zoo(folder / "tiny")
    calibrators = [{"method": name, "params": {"steps": 3, "batch_size": 8}} for name in CALIBRATORS]
    store = Store(folder / "store")
    run_recipe(parse_recipe({"zoo": str(zoo), "calibrators": calibrators}), store, out=folder / "static")
    run_recipe(parse_recipe({"zoo": str(zoo), "merge": {"method": "emr"}}), store, out=folder / "dynamic")
    return folder


@pytest.fixture(scope="module")
def images(place):
    with np.load(place / "tiny" / "data" / "alpha.npz") as arrays:
        return arrays["test_x"]


PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
OFFLINE = ["--no-deps", "--no-index"]
MOST = 60e6  # bytes of the wheel


def pip(*arguments):
    done = subprocess.run([*PIP, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, source / name)
    shutil.copytree(ROOT / "engine", source / "engine", ignore=shutil.ignore_patterns("__pycache__"))
    (source / "assets").symlink_to(ROOT / "assets")
    pip("wheel", *OFFLINE, "--no-build-isolation", "--wheel-dir", folder, source)
    (found,) = folder.glob("mergelens-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel):
    """A folder that holds the installed wheel and nothing else."""
    target = wheel.parent / "installed"
    pip("install", *OFFLINE, "--no-compile", "--target", target, wheel)
    return target


SOMEBODY_ELSE = """
import sys
from pathlib import Path
import mergelens
light = "torch" not in sys.modules
import numpy as np, torch
from safetensors.torch import save_file
runs, names = sys.argv[1], sys.argv[2].split(",")
images = np.load(runs + "/tiny/data/alpha.npz")["test_x"]

encoder = mergelens.load_merged(runs + "/static/merged.safetensors")
features = encoder(encoder.preprocess(images))
found = {"merged": features}
for name in names:
    calibrator = mergelens.load_calibrator(f"{runs}/static/calibrators/{name}.safetensors")
    own = Path(f"{runs}/static/calibrators/{name}")
    inside = mergelens.load_merged(own) if own.is_dir() else encoder
    if calibrator.deep:
        found[name] = calibrator.correct_features(inside, encoder.preprocess(images), "alpha")
    else:
        found[name] = calibrator.correct(features, "alpha")
base = runs + "/tiny/base.safetensors"
encoder = mergelens.load_merged(runs + "/dynamic", task="alpha", base=base)
found["dynamic"] = encoder(encoder.preprocess(images))
save_file({name: tensor.contiguous() for name, tensor in found.items()}, sys.argv[3])
print(light, "engine" in sys.modules, mergelens.__file__)
"""


def test_the_wheel_computes_what_the_engine_measured(place, installed, tmp_path):
    (tmp_path / "theirs.py").write_text(SOMEBODY_ELSE)
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "theirs.py", str(place), ",".join(CALIBRATORS), str(tmp_path / "found.safetensors")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    light, ours, file = done.stdout.split()
    assert (light, ours) == ("True", "False")
    assert Path(file).is_relative_to(installed)
    found = load_file(tmp_path / "found.safetensors")
    measured = load_file(place / "static" / "features.safetensors")
    other = load_file(place / "dynamic" / "features.safetensors")
    for state in ("merged", *CALIBRATORS):
        torch.testing.assert_close(found[state], measured[f"{state}/alpha/evaluate"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found["dynamic"], other["merged/alpha/evaluate"], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found["surgery"], found["merged"], atol=1e-6)


def test_the_wheel_holds_every_module_and_nothing_else(installed):
    def modules(folder):
        return {str(path.relative_to(folder)) for path in folder.rglob("*.py")}

    assert modules(installed / "mergelens") == modules(ROOT / "engine")
    assert {path.name.split("-")[0] for path in installed.iterdir()} == {"mergelens", "bin"}


COMMANDS = """
import sys, traceback
sys.path.insert(0, sys.argv[1])
from mergelens.__main__ import main
import json
for arguments in json.loads(sys.argv[2]):
    sys.argv = ["mergelens", *arguments]
    try:
        main()
        status = 0
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
        status = "traceback"
    print(f"== {status}", flush=True)
    print(f"== {status}", file=sys.stderr, flush=True)
"""


def test_the_command_works_installed_and_ends_without_tracebacks(installed, tmp_path):
    """Alone with its dependencies: it finds its own zoo, data sets, experiments and lessons."""
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "merged.safetensors"
    recipe.write_text("zoo: mini8\nmerge: {method: task_arithmetic, params: {scaling: 0.25}}\n")
    (tmp_path / "broken.yaml").write_text("zoo: [")
    arguments = [
        (["--help"], 0),
        (["merge", "--nothing"], 2),
        (["merge", str(tmp_path / "missing.yaml")], 1),
        (["merge", str(tmp_path / "broken.yaml")], 1),
        (["zoo", "check", "nowhere"], 1),
        (["merge", str(recipe), "--out", str(out)], 0),
        (["receipt", str(out)], 0),
        (["convert", str(recipe), "--for", "fusionbench", "--to", str(tmp_path / "method.yaml")], 0),
        (["zoo", "check", "mini8"], 0),
        (["runs", "list"], 0),
        (["selfcheck"], 1),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["MERGELENS_STORE"] = str(tmp_path / "store")
    command = [sys.executable, "-I", "-c", COMMANDS, str(installed), json.dumps([given for given, _ in arguments])]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    parts = done.stdout.split("== ")
    assert [int(part.split()[0]) for part in parts[1:]] == [expected for _, expected in arguments], done.stderr
    assert "Usage" in parts[0]
    assert "not valid YAML" in done.stderr
    assert "run `pip install tests/reference`" in done.stderr
    assert load_file(out)
    assert (tmp_path / "merged.receipt.json").is_file()
    assert yaml.safe_load((tmp_path / "method.yaml").read_text())["scaling_factor"] == 0.25


def test_the_wheel_brings_its_files_types_and_entry_points(wheel, installed):
    package = installed / "mergelens"
    assert wheel.stat().st_size <= MOST
    assert (package / "py.typed").is_file()
    for place in ("zoos/mini8/zoo.yaml", "zoos/clip-vit-b32-ta8.yaml", "datasets/dtd.yaml"):
        assert (package / "assets" / place).is_file(), place
    for place in ("experiments", "lessons"):
        ours = {path.name for path in (ROOT / "assets" / place).iterdir()}
        assert {path.name for path in (package / "assets" / place).iterdir()} == ours
    assert "mergelens = mergelens.__main__:command" in next(installed.glob("*.dist-info/entry_points.txt")).read_text()


def test_the_console_script_works_in_an_environment_of_its_own(wheel, tmp_path):
    """Only the dependencies come from here; the program and the reference numbers come from their wheels."""
    venv.create(tmp_path / "own", with_pip=False)
    python = tmp_path / "own" / "bin" / "python"
    (site,) = (tmp_path / "own").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    source = tmp_path / "references"
    shutil.copytree(ROOT / "tests" / "reference", source)
    pip("wheel", *OFFLINE, "--no-build-isolation", "--wheel-dir", tmp_path, source)
    (numbers,) = tmp_path.glob("mergelens_references-*.whl")
    pip("--python", python, "install", *OFFLINE, "--no-compile", wheel, numbers)
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "merged.safetensors"
    recipe.write_text("zoo: mini8\nmerge: {method: task_arithmetic}\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["MERGELENS_STORE"] = str(tmp_path / "store")
    script = [str(tmp_path / "own" / "bin" / "mergelens"), "merge", str(recipe), "--out", str(out)]
    done = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert load_file(out)
    looked = "import mergelens; from mergelens import shipped; print(mergelens.__file__, shipped.references())"
    done = subprocess.run([python, "-c", looked], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    program, references = map(Path, done.stdout.split())
    assert program.is_relative_to(site)
    assert references.is_relative_to(site)

    def contents(folder):
        return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*.*") if p.suffix in (".json", ".xz")}

    assert contents(references) == contents(ROOT / "tests" / "reference")


def test_a_recipe_is_run_in_one_line(place, tmp_path, monkeypatch):
    monkeypatch.setenv("MERGELENS_STORE", str(tmp_path / "store"))
    report = engine.run({"zoo": str(place / "tiny")}, out=tmp_path / "run")
    assert report.accuracy["merged"].keys() == {"alpha", "beta", "gamma", "outside"}
    (tmp_path / "recipe.yaml").write_text(f"zoo: {place / 'tiny'}\n")
    assert engine.run(str(tmp_path / "recipe.yaml")).accuracy == report.accuracy


def test_images_are_prepared_from_arrays_and_pictures(place, images):
    from PIL import Image

    encoder = engine.load_merged(place / "static")
    whole = encoder.preprocess(images[:2])
    assert whole.shape == (2, 3, 16, 16)
    assert torch.equal(encoder.preprocess(Image.fromarray(images[0])), whole[:1])
    assert torch.equal(encoder.preprocess([Image.fromarray(images[0]), images[1]]), whole)
    assert encoder.preprocess(np.zeros((40, 20, 3), np.uint8)).shape == (1, 3, 16, 16)
    for wrong in (images[:2].astype(np.float32), images[:2, ..., :2], []):
        with pytest.raises(EngineError, match=r"uint8|no images"):
            encoder.preprocess(wrong)


def test_weights_that_do_not_say_their_architecture_need_a_zoo(place, images):
    expert = place / "tiny" / "experts" / "alpha.safetensors"
    with pytest.raises(EngineError, match="does not say which architecture"):
        engine.load_merged(expert)
    encoder = engine.load_merged(expert, zoo=str(place / "tiny"))
    measured = load_file(place / "static" / "features.safetensors")["expert/alpha/evaluate"]
    torch.testing.assert_close(encoder(encoder.preprocess(images)), measured, rtol=1e-5, atol=1e-5)


def test_weights_of_each_task_need_the_task_and_their_own_base(place, tmp_path):
    base = place / "tiny" / "base.safetensors"
    with pytest.raises(EngineError, match=r"give `task`, one of alpha, beta, gamma"):
        engine.load_merged(place / "dynamic", base=base)
    with pytest.raises(EngineError, match="give `base`"):
        engine.load_merged(place / "dynamic", task="alpha")
    with pytest.raises(EngineError, match="none for 'delta'"):
        engine.load_merged(place / "dynamic", task="delta", base=base)
    save_file({name: tensor + 1 for name, tensor in load_file(base).items()}, tmp_path / "other.safetensors")
    with pytest.raises(EngineError, match="is not the base of this merged model"):
        engine.load_merged(place / "dynamic", task="alpha", base=tmp_path / "other.safetensors")
    assert engine.load_merged(place / "dynamic", task="alpha", zoo=str(place / "tiny")).preprocess


def test_calibrators_say_what_they_were_trained_with_and_what_they_cannot_do(place):
    surgery = engine.load_calibrator(place / "static" / "calibrators" / "surgery.safetensors")
    recipe = yaml.safe_load((place / "static" / "recipe.yaml").read_text())
    assert surgery.config.model_dump(mode="json") == recipe["calibrators"][0]["params"]
    assert surgery.tasks == ("alpha", "beta", "gamma")
    with pytest.raises(CalibrationError, match="width 16; these have 8"):
        surgery.correct(torch.zeros(2, 8), "alpha")
    with pytest.raises(CalibrationError, match="Did you mean 'alpha'"):
        surgery.correct(torch.zeros(2, 16), "alhpa")
    deep = engine.load_calibrator(place / "static" / "calibrators" / "interv_merge.safetensors")
    with pytest.raises(CalibrationError, match="correct_features"):
        deep.correct(torch.zeros(2, 16), "alpha")


HEADERS = {
    "none": None,
    "not JSON": "{",
    "a list": "[]",
    "an unknown method": {"method": "surgeyr"},
    "no tasks": {"tasks": []},
    "a task twice": {"tasks": ["alpha", "alpha", "beta"]},
    "a huge width": {"sizes": {"dim": 10**12}},
    "no width": {"sizes": {}},
    "a wrong parameter": {"params": {"rank": -1}},
    "another width": {"sizes": {"dim": 8}},
}


@pytest.mark.parametrize("change", HEADERS)
def test_a_calibrator_with_a_bad_header_is_refused(change, place, tmp_path):
    from safetensors import safe_open

    path = place / "static" / "calibrators" / "surgery.safetensors"
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["mergelens"])
    value = HEADERS[change]
    text = json.dumps(header | value) if isinstance(value, dict) else value
    save_file(load_file(path), tmp_path / "c.safetensors", metadata={"mergelens": text} if text else None)
    with pytest.raises(EngineError):
        engine.load_calibrator(tmp_path / "c.safetensors")
