"""Brought names, classes, values and images that do not fit are told before anything is written."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize
from typer.testing import CliRunner

from engine.__main__ import app
from engine.errors import ZooError
from engine.zoo.check import check_zoo
from engine.zoo.folder import Zoo
from engine.zoo.images.brought import find_tasks
from engine.zoo.images.data import read_source
from engine.zoo.importing.convert import import_zoo
from engine.zoo.importing.request import parse_request
from engine.zoo.importing.survey import survey
from engine.zoo.inspection.duplicates import duplicates
from tests.image_files import encoded, picture
from tests.made_checkpoints import write_head, write_hf
from tests.made_imports import ask, silent
from tests.tiny_zoo import make_zoo, write_task


@pytest.fixture
def files(tmp_path, base, tuned):
    """A base and an expert in Hugging Face's form, a head of three classes, and images of three."""
    write_hf(tmp_path / "base", base)
    write_hf(tmp_path / "expert", tuned["dtd"])
    write_head(tmp_path / "head.pt", torch.randn(3, 16))
    write_task(tmp_path / "images.npz", 0, 12)
    return tmp_path


def brought(files, task="birds", **more):
    """A request in which a person names everything."""
    document = {"heads": [{"path": str(files / "head.pt"), "task": task}], "data": {task: str(files / "images.npz")}}
    return ask(files, files / "base", (task, files / "expert"), **{**document, **more})


@pytest.mark.parametrize("name", ["flowers", "sun", "cars", "pets", "emnist", "Oxford-Pets"])
def test_a_persons_names_stay(files, name):
    """Fault 5: head and expert were renamed, the data were not, and the task became out-of-domain."""
    summary = import_zoo(brought(files, name), silent)
    zoo = Zoo.open(str(files / "zoo"))
    assert [(expert.name, expert.task) for expert in zoo.manifest.experts] == [(name, name)]
    assert [(task.name, task.domain, len(task.classes)) for task in zoo.manifest.tasks] == [(name, "in", 3)]
    assert set(load_file(files / "zoo" / "heads.safetensors")) == {name, "logit_scale"}
    assert not [text for text in summary["warnings"] if "No head" in text or "No expert" in text]


def test_a_file_that_nobody_named_joins_the_name_that_was_given(files, base, tuned):
    """Aliases only suggest: `Cars/finetuned.pt` is for the task that a person calls cars."""
    write_hf(files / "Cars", tuned["cars"])
    document = {"base": str(files / "base"), "experts": [{"path": str(files / "Cars")}], "name": "z"}
    document |= {"heads": [{"path": str(files / "head.pt"), "task": "cars"}], "out": str(files / "zoo")}
    found = survey(parse_request({**document, "preprocess": "openai"}), silent)
    assert [row.task for row in found.experts] == ["cars"]
    assert not found.faults


def folders(place, classes, each=2):
    for label, name in enumerate(classes):
        (place / name).mkdir(parents=True)
        for number in range(each):
            (place / name / f"{number}.png").write_bytes(encoded(picture(label % 3, 10 * label + number)))
    return place


def test_classes_that_do_not_fit_their_head_are_refused(files):
    """Fault 9: imports ended well although the zoo could not work."""
    many = folders(files / "many", ("ant", "bee", "cat", "dog"))
    with pytest.raises(ZooError, match="3 classes, its images have 4"):
        import_zoo(brought(files, data={"birds": str(many)}), silent)
    one = folders(files / "one", ("ant",))
    with pytest.raises(ZooError, match="one class only, ant"):
        import_zoo(brought(files, heads=[], data={"birds": str(one)}), silent)
    with pytest.raises(ZooError, match="must list the `class_names`"):
        import_zoo(brought(files, heads=[]), silent)
    arrays = dict(np.load(files / "images.npz"))
    np.savez(files / "images.npz", **{**arrays, "test_y": arrays["test_y"] + 1})
    with pytest.raises(ZooError, match="label 3"):
        import_zoo(brought(files), silent)
    (files / "images.npz").write_bytes(b"PK\x03\x04 no more")
    with pytest.raises(ZooError, match=r"images\.npz"):
        import_zoo(brought(files), silent)
    assert not (files / "zoo").exists()


def test_images_that_name_their_classes_need_no_head(files):
    import_zoo(brought(files, heads=[], data={"birds": str(folders(files / "f", ("ant", "bee")))}), silent)
    assert Zoo.open(str(files / "zoo")).manifest.task_table["birds"].classes == ("ant", "bee")


def test_broken_images_are_refused_by_the_import(files):
    place = folders(files / "f", ("ant", "bee", "cat"))
    (place / "ant" / "0.png").write_bytes(b"broken")
    with pytest.raises(ZooError, match=r"cannot be decoded: ant/0\.png"):
        import_zoo(brought(files, data={"birds": str(place)}), silent)
    assert not (files / "zoo").exists()


def test_values_that_a_dtype_cannot_hold_are_refused(files, base):
    save_file({**base, "visual.conv1.weight": base["visual.conv1.weight"] * 1e7}, files / "large.safetensors")
    request = ask(files, files / "large.safetensors", ("birds", files / "expert"), dtype="float16")
    with pytest.raises(ZooError, match="float16 cannot hold"):
        import_zoo(request, silent)
    whole = {name: (value * 100).to(torch.int8) for name, value in base.items()}
    save_file(whole, files / "whole.safetensors")
    with pytest.raises(ZooError, match="quantised"):
        import_zoo(ask(files, files / "base", ("birds", files / "whole.safetensors")), silent)


def test_the_check_of_an_import_ends_with_1_on_any_fault(files, base):
    """Fault 10: it ended with 0, and did not look for NaN."""
    bias = base["visual.ln_post.bias"]
    for value, name in ((float("nan"), "broken"), (float("-inf"), "infinite")):
        save_file({**base, "visual.ln_post.bias": torch.full_like(bias, value)}, files / f"{name}.safetensors")
    words = ["zoo", "import", "--check", "--base", str(files / "base"), "--out", str(files / "zoo")]
    words += ["--preprocess", "openai", "--expert"]
    result = CliRunner().invoke(app, [*words, f"birds={files / 'broken.safetensors'}"])
    assert result.exit_code == 1
    assert "Fault: Expert 'birds' has 32 NaN" in result.output
    result = CliRunner().invoke(app, [*words, f"birds={files / 'infinite.safetensors'}"])
    assert (result.exit_code, "32 infinite values" in result.output) == (1, True)
    result = CliRunner().invoke(app, [*words, f"birds={files / 'expert'}"])
    assert result.exit_code == 0
    assert "preprocess: 16 px, bicubic, shortest" in result.output
    assert not (files / "zoo").exists()


def test_images_that_come_twice_are_found(tmp_path):
    """Fault 11: in train and test, and within test."""
    zoo = make_zoo(tmp_path / "zoo")
    assert not [text for text in check_zoo(str(zoo), silent) if "twice" in text]
    place = zoo / "data" / "alpha.npz"
    arrays = dict(np.load(place))
    between = {**arrays, "train_x": arrays["test_x"][:6], "train_y": arrays["test_y"][:6]}
    np.savez(place, **between)
    with pytest.raises(ZooError, match="6 of 24 test images come twice in the test images and in train"):
        check_zoo(str(zoo), silent)
    within = arrays["test_x"].copy()
    within[3] = within[0]
    np.savez(place, **{**arrays, "test_x": within})
    with pytest.raises(ZooError, match="2 of 24 test images come twice within the test images"):
        check_zoo(str(zoo), silent)


def test_images_that_come_twice_are_found_in_large_splits(tmp_path, monkeypatch):
    zoo = make_zoo(tmp_path / "zoo")
    place = zoo / "data" / "alpha.npz"
    arrays = dict(np.load(place))
    train = np.concatenate([255 - arrays["test_x"][:20]] * 2)
    train[-6:] = arrays["test_x"][-6:]
    np.savez(place, **{**arrays, "train_x": train, "train_y": np.zeros(40, np.int64)})
    monkeypatch.setattr("engine.zoo.inspection.duplicates.LARGEST", 30)
    found = [finding.text for finding in duplicates(Zoo.open(str(zoo)), "alpha")]
    assert [text for text in found if "6 of 24 test images come twice in the test images and in train" in text]
    assert "alpha: of 40 train images, the first 30 are compared by their looks, all by their bytes" in found


def test_images_that_only_look_alike_are_a_warning(tmp_path):
    zoo = make_zoo(tmp_path / "zoo")
    place = folders(zoo / "data" / "alpha", ("circle", "square", "star"), each=4)
    (zoo / "data" / "alpha.npz").unlink()
    (zoo / "zoo.yaml").write_text((zoo / "zoo.yaml").read_text().replace("data/alpha.npz", "data/alpha"))
    assert not [text for text in check_zoo(str(zoo), silent) if "look nearly" in text]
    scene = picture(0, 0).resize((96, 64))
    (place / "circle" / "scene.png").write_bytes(encoded(scene))
    (place / "star" / "again.jpg").write_bytes(encoded(scene, "JPEG", quality=90))
    assert [text for text in check_zoo(str(zoo), silent) if "look nearly like others" in text]


def write_booleans(path, labels):
    """Images as PatchCamelyon's parquet files have them on the hub."""
    images = [{"bytes": encoded(picture(n % 3, n)), "path": f"{n}.png"} for n in range(len(labels))]
    pq.write_table(pa.table({"image": images, "label": labels}), path)
    return path


def test_labels_of_patchcamelyon_are_booleans(tmp_path):
    """Fault 7: its parquet files say True and False."""
    from engine.zoo.images.readers.parquet import ParquetShards

    path = write_booleans(tmp_path / "test.parquet", [True, False, None, True, False, True])
    assert ParquetShards(path).labels("test").tolist() == [1, 0, -1, 1, 0, 1]


def test_patchcamelyon_is_scored(files):
    """Fault 7: six of twelve described zoos have it; classes come from the catalogue."""
    from engine.pipeline.local import run_recipe
    from engine.recipe import parse_recipe
    from engine.store import Store

    labels = [n % 3 == 0 for n in range(24)]
    data = write_booleans(files / "pcam.parquet", labels)
    write_head(files / "head.pt", torch.randn(2, 16))
    import_zoo(brought(files, "pcam", data={"pcam": str(data)}), silent)
    task = Zoo.open(str(files / "zoo")).manifest.task_table["pcam"]
    assert len(task.classes) == 2
    report = run_recipe(parse_recipe({"zoo": str(files / "zoo")}), Store(files / "store"))
    assert report.samples["pcam"].available == 24
    assert 0 <= report.accuracy["expert"]["pcam"] <= 100


def test_bombs_as_data_are_refused(files):
    """Fault 9: only the check of a finished zoo objected."""
    import zipfile
    import zlib

    def part(kind, content):
        return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")

    header = (60_000).to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0"
    huge = (
        b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", zlib.compress(bytes(10_000))) + part(b"IEND", b"")
    )
    place = folders(files / "huge", ("ant", "bee", "cat"))
    (place / "ant" / "0.png").write_bytes(huge)
    with pytest.raises(ZooError, match=r"ant/0\.png"):
        import_zoo(brought(files, data={"birds": str(place)}), silent)
    with zipfile.ZipFile(files / "images.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("ant", "bee", "cat"):
            archive.writestr(f"{name}/0.png", bytes(50_000_000))
    with pytest.raises(ZooError, match=r"images\.zip|0\.png"):
        import_zoo(brought(files, data={"birds": str(files / "images.zip")}), silent)
    assert not (files / "zoo").exists()


def test_a_folder_without_a_base_says_what_it_holds(files):
    """Fault 13: also behind 500 other files."""
    many = files / "many"
    for number in range(600):
        (many / f"a{number:03}").mkdir(parents=True)
    (files / "expert").rename(many / "finch")
    (files / "base").rename(many / "zz")
    words = ["zoo", "import", "--folder", str(many), "--out", str(files / "zoo")]
    result = CliRunner().invoke(app, words)
    assert "2 experts, 0 heads and no file or folder that is called like a base" in str(result.exception)
    (many / "zz").rename(many / "zz-base")
    (many / "zz-base").rename(many / "base")
    assert "--base" not in str(CliRunner().invoke(app, [*words, "--preprocess", "openai"]).exception)


def test_a_name_that_is_none_is_explained(files):
    with pytest.raises(ZooError, match="--name"):
        brought(files, name="../up")
    words = ["zoo", "import", "--base", str(files / "base"), "--expert", f"b={files / 'expert'}"]
    words += ["--preprocess", "openai", "--out", str(files / "my zoo (1)")]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert Zoo.open(str(files / "my zoo (1)")).manifest.name == "my_zoo_1"


def test_the_installed_command_prints_a_line_and_no_traceback(tmp_path):
    """Fault 6: the entry point went past what turns errors into lines."""
    root = Path(__file__).resolve().parents[2]
    module, _, function = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"][
        "mergelens"
    ].partition(":")
    code = f"import sys; sys.argv = ['mergelens', 'preflight', {str(tmp_path)!r}]; "
    code += f"from {module.replace('mergelens', 'engine', 1)} import {function} as run; run()"
    result = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("Error: The recipe")  # and fault 14: a folder in place of a recipe
    assert "Traceback" not in result.stderr


def test_heads_of_unit_rows_need_a_scale(files):
    save_file({"birds": normalize(torch.randn(3, 16), dim=1)}, files / "heads.safetensors")
    heads = [{"path": str(files / "heads.safetensors")}]
    with pytest.raises(ZooError, match="--logit-scale"):
        import_zoo(brought(files, heads=heads), silent)
    assert [fault.setting for fault in survey(brought(files, heads=heads), silent).faults] == ["logit_scale"]
    import_zoo(brought(files, heads=heads, logit_scale=50), silent)
    assert Zoo.open(str(files / "zoo")).heads(["birds"])[0]["birds"].scale == pytest.approx(50)


def test_a_scale_without_heads_is_refused(files):
    with pytest.raises(ZooError, match="--logit-scale is the factor of heads that are brought, and none are"):
        import_zoo(brought(files, heads=[], logit_scale=50), silent)


def test_a_config_beside_a_loose_file_counts_where_it_fits(files, base):
    """Fault 2's other half: base.safetensors with its config.json beside it."""
    (files / "there").mkdir()
    save_file(base, files / "there" / "base.safetensors")
    config = (files / "base" / "config.json").read_text()
    (files / "there" / "config.json").write_text(config)
    document = {"base": str(files / "there" / "base.safetensors"), "name": "z", "out": str(files / "zoo")}
    document |= {"experts": [{"path": str(files / "expert"), "name": "e"}], "preprocess": "openai"}
    found = survey(parse_request(document), silent)
    assert not found.faults
    assert found.architecture.config["vision_cfg"]["head_width"] == 16
    save_file(base, files / "bare.safetensors")  # an expert of which nothing says more than of the base
    document["experts"] = [{"path": str(files / "bare.safetensors"), "name": "e"}]
    other = {**json.loads(config), "hidden_size": 64, "num_attention_heads": 1}
    (files / "there" / "config.json").write_text(json.dumps(other))
    found = survey(parse_request(document), silent)
    assert [fault for fault in found.faults if "--head-width" in fault.text]


def test_folders_that_a_table_lists_are_no_tasks_however_their_paths_are_written(tmp_path):
    folders(tmp_path / "images", ("a", "b"))
    for lead in ("", "./", ".//"):
        lines = [f"{lead}images/{name}/{number}.png,{name}" for name in "ab" for number in range(2)]
        (tmp_path / "birds.csv").write_text("\n".join(["path,label", *lines]))
        assert [task.name for task in find_tasks(tmp_path)[0]] == ["birds"]


def test_folders_of_images_without_labels_are_no_classes(tmp_path):
    folders(tmp_path / "pets" / "test", ("cat", "dog"))
    folders(tmp_path / "pets" / "adapt", ("everything", "cat"))
    source = read_source(tmp_path / "pets")
    assert source.brought == ("cat", "dog")
    assert source.labels("test").tolist() == [0, 0, 1, 1]
    assert source.lengths == {"test": 4, "adapt": 4}
    listed = ["path,label,split", "pets/test/cat/0.png,3,test", "pets/test/dog/0.png,0,test"]
    (tmp_path / "pets.csv").write_text("\n".join([*listed, "pets/adapt/cat/0.png,unknown,adapt"]))
    source = read_source(tmp_path / "pets.csv")
    assert (source.brought, source.labels("test").tolist()) == ((), [3, 0])
