"""A look at an import's files is done again where some of them changed, however deep they lie, and only then."""

import json
import os

import pytest
from PIL import Image

from engine.pipeline.executor import run_inline
from engine.pipeline.planners import plan_request
from engine.pipeline.zoos import stamps
from engine.pipeline.zoos.import_checkpoints import read_summary
from engine.pipeline.zoos.stamps import stamps_of_data
from engine.store import Store
from tests.image_files import CLASSES, write_folders
from tests.made_checkpoints import write_hf


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder that may be read."""
    monkeypatch.setenv("MERGELENS_ROOTS", str(tmp_path))
    return tmp_path


@pytest.fixture
def key(root):
    """Return the key of a look at some data, whose models are of no matter."""
    for name in ("base", "a"):
        (root / f"{name}.safetensors").write_bytes(b"x" * 64)
    store = Store(root / "store")

    def look(place, **more):
        document = {"base": str(root / "base.safetensors"), "experts": [{"path": str(root / "a.safetensors")}]}
        document |= {"data": {"birds": str(place)}, "name": "z", "out": str(root / "out"), "check": True}
        return plan_request("import", {**document, **more}, store).result

    return look


def test_a_mended_image_in_a_class_folder_is_looked_at_again(root, base):
    data = write_folders(root / "birds", splits=("test",))
    bad = [path for path in data.rglob("*") if path.is_file()]
    good = {path: path.read_bytes() for path in bad}
    for path in bad:
        path.write_bytes(b"broken")
    document = {
        "base": str(write_hf(root / "base", base)),
        "experts": [{"path": str(write_hf(root / "birds-e", base))}],
    }
    document |= {"data": {"birds-e": str(data)}, "name": "z", "out": str(root / "out"), "check": True}
    document |= {"preprocess": "openai", "prompts": {"birds-e": {"classes": list(CLASSES)}}}
    store = Store(root / "store")
    first = plan_request("import", document, store)
    assert read_summary(run_inline(first, store))["faults"]
    for path, content in good.items():
        path.write_bytes(content)
    second = plan_request("import", document, store)
    assert second.result != first.result
    faults = [fault["text"] for fault in read_summary(run_inline(second, store))["faults"]]
    assert not any("broken" in fault or "image" in fault for fault in faults)


def test_every_change_below_a_folder_counts(root, key):
    place = write_folders(root / "birds", splits=("train", "test"))
    seen = [key(place)]
    assert key(place) == seen[0], "nothing changed"
    image = place / "test" / "star" / "1.png"
    Image.new("RGB", (32, 32)).save(image)
    seen.append(key(place))
    image.rename(image.with_name("new.png"))
    seen.append(key(place))
    os.utime(image.with_name("new.png"), ns=(5, 5))
    seen.append(key(place))
    (place / "test" / "star" / "0.jpg").unlink()
    seen.append(key(place))
    (place / "test" / "star" / "broken.png").symlink_to("nowhere")
    seen.append(key(place))
    place.with_name("birds.json").write_text(json.dumps({"class_names": list(CLASSES)}))
    seen.append(key(place))
    assert len(set(seen)) == len(seen)
    (place / "train" / ".thumbnails").mkdir()
    assert key(place) == seen[-1], "hidden parts are no images"


def test_images_that_a_table_lists_count(root, key):
    write_folders(root / "images")
    table = root / "birds.csv"
    table.write_text("label;path\nstar;images/star/1.png\nsquare;images/square/0.jpg\nstar;../away.png\n;\n")
    first = key(table)
    os.utime(root / "images" / "circle" / "1.png", ns=(5, 5))
    assert key(table) == first, "it is not listed"
    os.utime(root / "images" / "star" / "1.png", ns=(5, 5))
    assert key(table) != first


@pytest.mark.parametrize("content", [b"text,label\na star,0\n", b"", b"\xff\xfe", b'path,label\n"' + b"x" * 200_000])
def test_other_tables_are_files_among_others(root, key, content):
    (root / "birds.csv").write_bytes(content)
    first = key(root / "birds.csv")
    (root / "birds.csv").write_bytes(content + b" ")
    assert key(root / "birds.csv") != first


def test_configs_beside_a_file_of_weights_count(root, key):
    place = write_folders(root / "birds")
    first = key(place)
    (root / "config.json").write_text("{}")
    second = key(place)
    (root / "notes.json").write_text("{}")
    assert key(place) == second != first
    (root / "vocabulary.json").write_text("{}")
    assert key(place) != second
    (root / "tower.json").write_text("{}")
    given = key(place, architecture=str(root / "tower.json"))
    (root / "tower.json").write_text("{ }")
    assert key(place, architecture=str(root / "tower.json")) != given


def test_a_walk_is_sorted_and_bounded(root, monkeypatch):
    place = write_folders(root / "birds")
    (whole,) = stamps_of_data(place)
    assert whole[0].startswith("12 entries ")
    asked = os.scandir

    class Backwards:
        """A listing of a folder in another order."""

        def __init__(self, path):
            self.entries = list(asked(path))[::-1]

        def __enter__(self):
            return self.entries

        def __exit__(self, *error):
            return None

    monkeypatch.setattr("os.scandir", Backwards)
    assert stamps_of_data(place) == [whole]
    monkeypatch.setattr(stamps, "MOST", 5)
    (part,) = stamps_of_data(place)
    assert part[0].startswith("5 entries ")
    os.utime(place / "star" / "1.png", ns=(5, 5))
    assert stamps_of_data(place) == [part], "behind the bound"
