"""`zoo init` and `zoo check` on images of every form."""

import shutil

import pytest
import yaml

from engine.errors import ZooError
from engine.manifest import read_manifest
from engine.zoo.check import check_zoo
from engine.zoo.making.draft import draft_manifest
from tests.image_files import encoded, picture, write_folders, write_parquet, write_zip
from tests.tiny_zoo import make_zoo

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
    draft_manifest(zoo)
    document = {task["name"]: task for task in yaml.safe_load((zoo / "zoo.yaml").read_text())["tasks"]}
    assert document["alpha"]["classes"] == ["circle", "square", "star"]
    assert document["beta"]["classes"] == ["big circle", "square", "star"]
    assert document["outside"]["data"] == "data/outside.zip"
    assert document["land"] == {"name": "land", "domain": "out", "data": "data/land", "dataset": "eurosat"}
    assert document["svhn"] == {"name": "svhn", "domain": "in", "dataset": "svhn"}
    assert document["gamma"]["classes"] == ["class 0", "class 1", "class 2"]
    assert len(read_manifest(zoo).task_table["land"].templates) == 3


def test_a_check_reads_every_form(zoo):
    draft_manifest(zoo)
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
