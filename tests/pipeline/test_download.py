"""Files of described zoos: found on a hub, downloaded, taken up, cancelled, and checked."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image
from safetensors.torch import save_file

from engine.errors import Cancelled, ZooError
from engine.zoo.described.fetch import download, list_remote, of_tag
from engine.zoo.described.make import holding
from engine.zoo.described.sources import Wanted, find, source_of
from engine.zoo.images.data import read_source
from engine.zoo.importing.sources import open_source
from tests.made_checkpoints import write_adapter
from tests.made_imports import silent
from tests.tiny_zoo import CONFIG

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
        (
            ("open_clip_pytorch_model.bin", "open_clip_model.safetensors", "config.json", "open_clip_config.json"),
            ["open_clip_model.safetensors", "config.json", "open_clip_config.json"],
        ),
        (
            ("adapter_model.safetensors", "adapter_model.bin", "adapter_config.json", "README.md"),
            ["adapter_model.safetensors", "adapter_config.json"],
        ),
        (("adapter_model.bin", "adapter_config.json"), ["adapter_model.bin", "adapter_config.json"]),
        (
            ("model.safetensors", "adapter_model.bin", "adapter_config.json"),
            ["adapter_model.bin", "adapter_config.json"],
        ),
        (("sub/model.safetensors", "model.safetensors.index.json", "config.json"), None),
    ],
)
def test_of_several_forms_of_weights_one_is_taken_with_its_configs(hub, names, taken):
    folder = hub.root / "models" / "own" / "both"
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"{}")
    item = source_of("expert", "", "hf:own/both")
    if taken is None:
        with pytest.raises(ZooError, match=r"holds no model\.safetensors, pytorch_model\.bin or adapter_model"):
            list_remote(item)
        return
    assert [file.name for file in list_remote(item).files] == taken
    place = hub.root / "models"
    assert [path.name for path in find(item, place, [place])] == taken[:1], "a local folder of the same layout"


def test_weights_in_shards_come_with_their_index(hub, base):
    folder = hub.root / "models" / "own" / "sharded"
    folder.mkdir(parents=True)
    tensors = {name: tensor.contiguous() for name, tensor in base.items()}
    shards = {name: f"model-{1 + number % 2:05d}-of-00002.safetensors" for number, name in enumerate(tensors)}
    for shard in {*shards.values()}:
        save_file({name: tensors[name] for name in tensors if shards[name] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (folder / "config.json").write_text("{}")
    item, place = source_of("expert", "", "hf:own/sharded"), hub.root / "models"
    names = ["model.safetensors.index.json", *sorted({*shards.values()})]
    assert [file.name for file in list_remote(item).files] == [*names, "config.json"]
    files = download(list_remote(item), silent)
    assert [path.name for path in files] == names
    assert {*open_source(files[0]).weights.names} == {*tensors}
    assert [path.name for path in find(item, place, [place])] == names
    (folder / names[-1]).unlink()
    assert find(item, folder, [place]) == find(item, folder), "only what the cache has, where a shard is missing"
    with pytest.raises(ZooError, match=r"holds no model\.safetensors"):
        list_remote(item)


def test_configs_lie_beside_the_weights_that_are_named(hub):
    folder = hub.root / "models" / "own" / "several"
    for name in ("config.json", "one/config.json", "one/adapter_config.json", "one/adapter_model.safetensors"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"{}")
    item = source_of("expert", "", "hf:own/several:one/adapter_model.safetensors")
    taken = ["one/adapter_model.safetensors", "one/adapter_config.json", "one/config.json"]
    assert [file.name for file in list_remote(item).files] == taken


def test_an_adapter_without_its_config_is_fetched_again(hub):
    folder = hub.root / "models" / "own" / "lora"
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(b"{}")
    item = source_of("expert", "", "hf:own/lora:adapter_model.safetensors")
    assert find(item, folder, [hub.root / "models"]) == ()
    (folder / "adapter_config.json").write_bytes(b"{}")
    assert find(item, folder, [hub.root / "models"])


def test_an_adapter_and_an_open_clip_model_come_as_they_are_opened_locally(hub, base):
    write_adapter(hub.root / "models" / "own" / "lora", base)
    (files,) = download(list_remote(source_of("expert", "", "hf:own/lora")), silent)
    assert open_source(files).adapter["peft_type"] == "LORA"
    (hub.root / "models/own/base/open_clip_config.json").write_text(json.dumps({"model_cfg": CONFIG}))
    (files,) = download(list_remote(source_of("base", "", "hf:own/base")), silent)
    assert open_source(files).open_clip == ({"model_cfg": CONFIG}, "open_clip_config.json")


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
