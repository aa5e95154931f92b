"""Files of described zoos: found on a hub, downloaded, taken up, cancelled, and checked."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from engine.errors import Cancelled, ZooError
from engine.zoo.described.fetch import download, list_remote, of_tag
from engine.zoo.described.make import holding
from engine.zoo.described.sources import Wanted, source_of
from engine.zoo.images.data import read_source
from tests.made_imports import silent

pytestmark = pytest.mark.usefixtures("cache")


def test_columns_of_webdataset_are_read(hub):
    """They are named after the members of its archives."""
    folder = hub.root / "datasets" / "own" / "wds" / "default" / "test"
    folder.mkdir(parents=True)
    stream = io.BytesIO()
    Image.new("RGB", (16, 16), "red").save(stream, "JPEG")
    image = {"bytes": stream.getvalue(), "path": "a.jpg"}
    columns = {"cls": [3, 1], "jpg": [image, image], "__key__": ["a", "b"], "__url__": ["x", "x"]}
    pq.write_table(pa.table(columns), folder / "0000.parquet")
    (files,) = download(list_remote(source_of("data", "faces", "hf:own/wds")), silent)
    source = read_source(files)
    assert source.labels("test").tolist() == [3, 1]
    assert source.encoded("test", 0) == stream.getvalue()


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (("pytorch_model.bin", "model.safetensors", "config.json"), ["model.safetensors", "config.json"]),
        (("pytorch_model.bin", "config.json", "training_args.bin"), ["pytorch_model.bin", "config.json"]),
    ],
)
def test_of_two_forms_of_weights_the_safer_is_taken(hub, names, taken):
    folder = hub.root / "models" / "own" / "both"
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_bytes(b"{}")
    assert [file.name for file in list_remote(source_of("expert", "", "hf:own/both")).files] == taken


def test_a_broken_download_is_taken_up_where_it_stopped(hub, described, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)
    item = next(item for item in holding(str(described)).missing if item.role == "base")
    hub.cut_after = 100_000
    (path,) = download(list_remote(item), silent)
    assert path.read_bytes() == (hub.root / "models/own/base/open_clip_model.safetensors").read_bytes()
    assert any(text.startswith("bytes=") and text != "bytes=0-" for text in hub.ranges)


def test_a_download_can_be_cancelled_and_is_resumed(hub, described):
    item = next(item for item in holding(str(described)).missing if item.role == "base")

    def stop(fraction, message=""):
        raise Cancelled("Cancelled.")

    with pytest.raises(Cancelled):
        download(list_remote(item), stop)
    assert holding(str(described)).here[item] == ()
    assert download(list_remote(item), silent)


def test_a_file_that_is_not_what_was_announced_is_refused(hub, described):
    hub.lie = True
    item = next(item for item in holding(str(described)).missing if item.role == "expert")
    with pytest.raises(ZooError, match="was announced"):
        download(list_remote(item), silent)
    assert holding(str(described)).here[item] == ()


def test_a_missing_repository_and_a_missing_split_are_named(hub, described):
    document = yaml.safe_load(described.read_text())
    document["experts"][0]["weights"] = "hf:own/nothing"
    document["tasks"][0]["data"] = "hf:own/expert_mnist"
    described.write_text(yaml.safe_dump(document))
    missing = holding(str(described)).missing
    with pytest.raises(ZooError, match="has no model own/nothing"):
        list_remote(missing[1])
    document["backbone"]["weights"] = "hf:../../etc:passwd"
    described.write_text(yaml.safe_dump(document))
    with pytest.raises(ZooError, match="names no repository"):
        holding(str(described))


def test_a_tag_of_open_clip_is_looked_up_in_its_list():
    item = of_tag(Wanted("base", "base", "openai", "tag"), "ViT-B-32")
    assert (item.scheme, item.repository) == ("hub", "timm/vit_base_patch32_clip_224.openai")
    with pytest.raises(ZooError, match=r"It has: .*openai"):
        of_tag(Wanted("base", "base", "opanai", "tag"), "ViT-B-32")
