"""`zoo init` and `zoo check` on images of every form."""

import json
import shutil

import pytest
import torch
import yaml
from safetensors.torch import save_file
from typer.testing import CliRunner

from engine.__main__ import app
from engine.errors import CheckpointError, ZooError
from engine.manifest import read_manifest
from engine.zoo.check import check_zoo
from engine.zoo.importing.draft import draft_manifest
from tests import foreign
from tests.image_files import encoded, picture, write_folders, write_parquet, write_zip
from tests.tiny_zoo import make_zoo

GIVEN = {"preprocess": "openai"}  # the config beside it says the rest
QUIET = lambda fraction, message="": None  # noqa: E731
LAND = (
    "AnnualCrop",
    "Forest",
    "HerbaceousVegetation",
    "Highway",
    "Industrial",
    "Pasture",
    "PermanentCrop",
    "Residential",
    "River",
    "SeaLake",
)


@pytest.fixture
def zoo(tmp_path):
    folder = make_zoo(tmp_path / "zoo")
    data = folder / "data"
    write_folders(data / "alpha", each=2)
    write_parquet(data / "beta.parquet", [0, 1, 2] * 2, names=("big_circle", "square", "star"))
    write_zip(data / "outside.zip")
    for name in ("alpha", "beta", "outside"):
        (data / f"{name}.npz").unlink()
    for number, name in enumerate(LAND):
        (data / "land" / name).mkdir(parents=True)
        (data / "land" / name / "a.png").write_bytes(encoded(picture(number % 3, number)))
    (folder / "zoo.yaml").unlink()
    (folder / "heads.safetensors").unlink()
    shutil.copy(folder / "experts" / "alpha.safetensors", folder / "experts" / "svhn.safetensors")
    return folder


def test_a_draft_knows_every_form_and_the_catalogue(zoo):
    draft_manifest(zoo, GIVEN)
    document = {task["name"]: task for task in yaml.safe_load((zoo / "zoo.yaml").read_text())["tasks"]}
    assert document["alpha"]["classes"] == ["circle", "square", "star"]
    assert document["beta"]["classes"] == ["big circle", "square", "star"]
    assert document["outside"]["data"] == "data/outside.zip"
    assert document["land"] == {"name": "land", "domain": "out", "data": "data/land", "dataset": "eurosat"}
    assert document["svhn"] == {"name": "svhn", "domain": "in", "dataset": "svhn"}
    assert document["gamma"]["classes"] == ["class 0", "class 1", "class 2"]
    assert len(read_manifest(zoo).task_table["land"].templates) == 3


def test_a_check_reads_every_form(zoo):
    draft_manifest(zoo, GIVEN)
    findings = check_zoo(str(zoo), QUIET)
    assert "alpha: 6 test images, 3 classes" in findings
    assert "land: 10 test images, 10 classes" in findings
    assert any("no heads and none can be built" in finding for finding in findings)
    (zoo / "data" / "alpha" / "star" / "0.jpg").write_bytes(b"broken")
    with pytest.raises(ZooError, match=r"1 of 6 images cannot be decoded: star/0\.jpg"):
        check_zoo(str(zoo), QUIET)
    document = yaml.safe_load((zoo / "zoo.yaml").read_text())
    document["tasks"][0]["corrupt"] = "skip"
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(document))
    assert any(
        "1 images (1 test) cannot be decoded and are left out" in finding for finding in check_zoo(str(zoo), QUIET)
    )


@pytest.fixture
def plain(tmp_path):
    """Three real experts with heads and images as strangers keep them, and no config."""
    for name in ("digits", "signs"):
        foreign.write_tensors(tmp_path / "experts" / f"{name}.safetensors", name)
        (tmp_path / "data").mkdir(exist_ok=True)
        shutil.copy(foreign.data(name), tmp_path / "data" / f"{name}.npz")
    foreign.write_tensors(tmp_path / "base.safetensors", "base")
    heads = {name: foreign.rows(name).contiguous() for name in ("digits", "signs")}
    save_file({**heads, "logit_scale": torch.tensor(3.0)}, tmp_path / "heads.safetensors")
    return tmp_path


def test_a_draft_decides_what_no_file_says_by_the_images(plain):
    given = {"preprocess": "mean=0.5,0.5,0.5;std=0.27,0.27,0.27", "quick_gelu": False}
    draft_manifest(plain, given)
    manifest = read_manifest(plain)
    assert json.loads((plain / "config.json").read_text())["vision_cfg"]["head_width"] == 32
    assert manifest.backbone.origins["head_width"].startswith("32 (4 heads) (decided by images of digits, signs")
    assert manifest.backbone.origins["preprocess"].endswith("(given: mean=0.5,0.5,0.5;std=0.27,0.27,0.27)")
    assert manifest.backbone.quick_gelu is False
    assert not [text for text in check_zoo(str(plain), QUIET) if "below its base" in text]


def test_a_draft_refuses_what_nothing_decides(plain):
    """The first edition wrote ViT-B-32 without a word."""
    shutil.rmtree(plain / "data")
    with pytest.raises(ZooError, match=r"attention heads cannot be known[\s\S]*--head-width[\s\S]*--preprocess"):
        draft_manifest(plain)
    assert not (plain / "zoo.yaml").exists()
    given = {"head_width": 32, "quick_gelu": False, "preprocess": "openai"}
    words = ["zoo", "init", str(plain), "--head-width", "32", "--no-quick-gelu", "--preprocess", "openai"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert read_manifest(plain).backbone.origins["head_width"] == "32 (4 heads) (given)"
    (plain / "zoo.yaml").unlink()
    other = json.loads((plain / "config.json").read_text())
    other["vision_cfg"]["head_width"] = 64
    (plain / "config.json").write_text(json.dumps(other))
    draft_manifest(plain, given)  # a person's word counts more than a file's, and the file stays
    assert json.loads((plain / "architecture.json").read_text())["vision_cfg"]["head_width"] == 32
    assert json.loads((plain / "config.json").read_text()) == other


def test_a_draft_of_files_in_other_forms_names_the_import(plain):
    foreign.write_hf(plain / "hf", "digits")
    shutil.copy(plain / "hf" / "model.safetensors", plain / "experts" / "digits.safetensors")
    with pytest.raises(CheckpointError, match="zoo import"):
        draft_manifest(plain)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        (lambda name, rows: {name: rows * 50}, "holds rows of norm 50, not 1, for the task 'digits'"),
        (lambda name, rows: {f"{name}.weight": rows}, r"the tensors .*digits\.weight.* none of them for the task"),
    ],
)
def test_a_draft_refuses_heads_that_only_an_import_converts(plain, tensors, said):
    both = [tensors(name, foreign.rows(name).contiguous()) for name in ("digits", "signs")]
    save_file({**both[0], **both[1], "logit_scale": torch.tensor(50.0).log()}, plain / "heads.safetensors")
    given = {"head_width": 32, "quick_gelu": False, "preprocess": "openai"}
    with pytest.raises(ZooError, match=f"heads.safetensors.*{said}.*zoo import"):
        draft_manifest(plain, given)
    assert not (plain / "zoo.yaml").exists()
    assert not (plain / "config.json").exists()


def test_a_zoo_that_states_no_preprocessing_is_warned_about(zoo):
    draft_manifest(zoo, GIVEN)
    document = yaml.safe_load((zoo / "zoo.yaml").read_text())
    del document["backbone"]["preprocess"]
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(document))
    assert [text for text in check_zoo(str(zoo), QUIET) if "states no `preprocess`" in text]


def test_an_image_that_cannot_be_read_is_a_fault_among_others(zoo):
    rows = [f"alpha/{name}/0.jpg,{name}" for name in ("circle", "square", "star")]
    (zoo / "data" / "list.csv").write_text("\n".join(["path,label", *rows, "alpha/star/gone.jpg,star"]))
    draft_manifest(zoo, GIVEN)
    with pytest.raises(ZooError, match=r"(?s)has 1 fault:.*1 of 4 images cannot be decoded: alpha/star/gone\.jpg"):
        check_zoo(str(zoo), QUIET)


@pytest.mark.parametrize("name", ["base", "merged", "multitask"])
def test_no_expert_is_named_like_another_model(zoo, name):
    draft_manifest(zoo, GIVEN)
    document = yaml.safe_load((zoo / "zoo.yaml").read_text())
    document["experts"][0]["name"] = name
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(ZooError, match=f"an expert is named '{name}', which stands for another model; rename it"):
        read_manifest(zoo)
