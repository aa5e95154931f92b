"""Checkpoints of every format become the same zoo; what does not belong together is refused or warned about."""

import json

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize

from engine.errors import EngineError, ZooError
from engine.manifest import read_manifest
from engine.zoo.check import check_zoo
from engine.zoo.encoders.heads import read_heads
from engine.zoo.folder import Zoo
from engine.zoo.importing.convert import import_zoo
from tests.made_checkpoints import clip, visual_of, write_adapter, write_head, write_hf, write_pickle
from tests.made_imports import agrees, ask, done, silent
from tests.tiny_zoo import CONFIG


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_whole_module_pickles_with_heads(tmp_path, base, tuned, legacy):
    files = tmp_path / "ViT-tiny"
    write_pickle(files / "zeroshot.pt", base, legacy=legacy)
    rows = {}
    for name, folder in (("cars", "Cars"), ("dtd", "DTD")):
        write_pickle(files / folder / "finetuned.pt", tuned[name], legacy=legacy)
        rows[name] = normalize(torch.randn(3 + len(rows), 16), dim=1)
        write_head(files / f"head_{folder}.pt", rows[name])
    heads = [{"path": str(files / "head_Cars.pt")}, {"path": str(files / "head_DTD.pt")}]
    request = ask(
        tmp_path, files / "zeroshot.pt", files / "Cars" / "finetuned.pt", files / "DTD" / "finetuned.pt", heads=heads
    )
    zoo, summary = done(request)
    assert list(zoo.manifest.expert_table) == ["stanford_cars", "dtd"]
    assert zoo.manifest.backbone.quick_gelu is True  # the classes in the pickle say so
    agrees(zoo.weights("base"), base)
    agrees(zoo.weights("stanford_cars"), tuned["cars"])
    read, warnings = read_heads(zoo.folder, zoo.manifest, ["stanford_cars", "dtd"])
    assert not warnings
    for task, name in (("stanford_cars", "cars"), ("dtd", "dtd")):
        assert read[task].scale == pytest.approx(100, rel=1e-5)
        assert torch.allclose(read[task].weight, rows[name], atol=1e-6)
    assert any("text-side" in note for row in summary["rows"] for note in row["notes"])
    assert check_zoo(str(zoo.folder), silent)


FORMS = {
    "folder": {},
    "no prefix": {"prefix": False},
    "no projection": {"projection": False},
    "neither": {"prefix": False, "projection": False},
    "bin": {"binary": True},
    "shards": {"shards": 3},
    "bin shards": {"binary": True, "shards": 2},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_hugging_face_folders(tmp_path, base, tuned, form):
    write_hf(tmp_path / "clip-vit-base-patch32", base)
    expert = write_hf(tmp_path / "clip-vit-base-patch32_stanford-cars", tuned["cars"], **form)
    zoo, summary = done(ask(tmp_path, tmp_path / "clip-vit-base-patch32", expert))
    agrees(zoo.weights("stanford_cars"), tuned["cars"])
    assert zoo.manifest.backbone.quick_gelu is True
    assert all("no heads" in warning for warning in summary["warnings"])
    assert check_zoo(str(zoo.folder), silent)


def test_one_hugging_face_file_and_gelu(tmp_path, base, tuned):
    write_hf(tmp_path / "base", base, quick_gelu=False)
    write_hf(tmp_path / "birds", tuned["dtd"], quick_gelu=False)
    zoo, _ = done(ask(tmp_path, tmp_path / "base", ("birds", tmp_path / "birds" / "model.safetensors")))
    agrees(zoo.weights("birds"), tuned["dtd"])
    assert zoo.manifest.backbone.quick_gelu is False


def test_the_formats_compute_the_same_features(tmp_path, base):
    from engine.zoo.encoders.backbone import architecture, load_encoder

    model = clip().eval()
    images = torch.randn(4, 3, 16, 16)
    write_hf(tmp_path / "base", base)
    zoo, _ = done(ask(tmp_path, tmp_path / "base", ("e", write_hf(tmp_path / "e", base))))
    encoder = load_encoder(architecture(zoo.folder, zoo.manifest), zoo.weights("e"))
    with torch.no_grad():
        assert torch.allclose(encoder(images), model.visual(images), atol=1e-6)


def test_a_complete_hugging_face_clip_keeps_its_text_encoder(tmp_path):
    model = clip()
    base = visual_of(model)
    folder = write_hf(tmp_path / "base", base)
    tensors = load_file(folder / "model.safetensors")
    width = CONFIG["text_cfg"]["width"]
    state = model.state_dict()
    tensors |= {
        "text_model.embeddings.token_embedding.weight": state["token_embedding.weight"],
        "text_model.embeddings.position_embedding.weight": state["positional_embedding"],
        "text_model.final_layer_norm.weight": state["ln_final.weight"],
        "text_model.final_layer_norm.bias": state["ln_final.bias"],
        "text_projection.weight": state["text_projection"].T.contiguous(),
        "logit_scale": state["logit_scale"],
        "vision_model.embeddings.position_ids": torch.arange(5)[None],
    }
    start, there = "transformer.resblocks.0.", "text_model.encoder.layers.0."
    for ours, theirs in (
        ("ln_1", "layer_norm1"),
        ("ln_2", "layer_norm2"),
        ("attn.out_proj", "self_attn.out_proj"),
        ("mlp.c_fc", "mlp.fc1"),
        ("mlp.c_proj", "mlp.fc2"),
    ):
        for kind in ("weight", "bias"):
            tensors[f"{there}{theirs}.{kind}"] = state[f"{start}{ours}.{kind}"]
    for kind in ("weight", "bias"):
        for letter, part in zip("qkv", state[f"{start}attn.in_proj_{kind}"].split(width), strict=True):
            tensors[f"{there}self_attn.{letter}_proj.{kind}"] = part.clone()
    save_file(tensors, folder / "model.safetensors")
    zoo, _ = done(ask(tmp_path, folder, ("e", write_hf(tmp_path / "e", base))))
    stored = load_file(zoo.folder / "base.safetensors")
    assert set(stored) == set(state)
    for name, tensor in state.items():
        assert torch.equal(stored[name], tensor), name


def test_open_clip_files_nested_and_prefixed(tmp_path, base, tuned):
    model = clip()
    torch.save({"epoch": 1, "state_dict": {f"module.{n}": t for n, t in model.state_dict().items()}}, tmp_path / "b.pt")
    save_file(tuned["cars"], tmp_path / "cars.safetensors")
    bare = {name.removeprefix("visual."): tensor for name, tensor in tuned["dtd"].items()}
    save_file({**bare, "classification_head.weight": torch.zeros(2, 16)}, tmp_path / "dtd.safetensors")
    zoo, summary = done(ask(tmp_path, tmp_path / "b.pt", tmp_path / "cars.safetensors", tmp_path / "dtd.safetensors"))
    agrees(zoo.weights("base"), base)
    agrees(zoo.weights("stanford_cars"), tuned["cars"])
    agrees(zoo.weights("dtd"), tuned["dtd"])
    assert any("head" in note for row in summary["rows"] for note in row["notes"])


def test_dtypes_are_kept_or_changed(tmp_path, base, tuned):
    save_file({n: t.half() for n, t in base.items()}, tmp_path / "base.safetensors")
    save_file({n: t.bfloat16() for n, t in tuned["dtd"].items()}, tmp_path / "dtd.safetensors")
    zoo, _ = done(ask(tmp_path, tmp_path / "base.safetensors", tmp_path / "dtd.safetensors"))
    assert zoo.weights("base").dtype("visual.proj") == torch.float16
    assert zoo.weights("dtd").dtype("visual.proj") == torch.bfloat16
    request = ask(tmp_path, tmp_path / "base.safetensors", tmp_path / "dtd.safetensors", dtype="float32")
    zoo, _ = done(request.model_copy(update={"out": str(tmp_path / "single")}))
    assert zoo.weights("dtd").dtype("visual.proj") == torch.float32


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_rslora": True},
        {"rank_pattern": {"q_proj": 4}, "alpha_pattern": {"fc1": 1}},
        {"modules": ("q_proj", "v_proj", "out_proj"), "prefix": ""},
    ],
)
def test_lora_adapters_are_merged_onto_the_base(tmp_path, base, options):
    write_hf(tmp_path / "base", base)
    folder, expected = write_adapter(tmp_path / "birds-lora", base, **options)
    zoo, summary = done(ask(tmp_path, tmp_path / "base", ("birds", folder)))
    agrees(zoo.weights("birds"), expected, 1e-5)
    assert "LoRA" in summary["rows"][1]["layout"]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["classifier"]}, "modules_to_save"),
        ({"bias": "all"}, "bias"),
        ({"peft_type": "LOHA"}, "LOHA"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa"),
        ({"rank_pattern": {"(a+)+$": 3}}, "expression"),
        ({"r": 3}, "rank"),
        ({"lora_alpha": "many"}, "lora_alpha"),
    ],
)
def test_adapters_that_are_not_plain_lora_are_refused_by_name(tmp_path, base, options, word):
    write_hf(tmp_path / "base", base)
    folder, _ = write_adapter(tmp_path / "lora", base)
    document = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**document, **options}))
    with pytest.raises(ZooError, match=word):
        import_zoo(ask(tmp_path, tmp_path / "base", ("lora", folder)), silent)
    assert not (tmp_path / "zoo").exists()


def test_weights_alone_make_a_zoo_that_merges(tmp_path, base, tuned):
    from engine.pipeline.export.merge_files import merge_recipe
    from engine.recipe import parse_recipe

    write_hf(tmp_path / "base", base)
    write_hf(tmp_path / "cars", tuned["cars"], projection=False)
    write_hf(tmp_path / "dtd", tuned["dtd"])
    zoo, _ = done(ask(tmp_path, tmp_path / "base", tmp_path / "cars", tmp_path / "dtd"))
    assert len(zoo.manifest.task_table["dtd"].classes) == 47  # known by its name
    merge_recipe(parse_recipe({"zoo": str(zoo.folder)}), tmp_path / "merged.safetensors")
    merged = load_file(tmp_path / "merged.safetensors")
    name = "visual.conv1.weight"
    vectors = sum(tuned[task][name] - base[name] for task in tuned)
    assert torch.allclose(merged[name], base[name] + 0.3 * vectors, atol=1e-6)


def test_data_is_named_in_the_manifest(tmp_path, base, tuned):
    from tests.tiny_zoo import write_task

    save_file(base, tmp_path / "base.safetensors")
    save_file(tuned["dtd"], tmp_path / "dtd.safetensors")
    write_task(tmp_path / "images.npz", 0, 12)
    write_head(tmp_path / "head_DTD.pt", torch.randn(3, 16))
    request = ask(
        tmp_path,
        tmp_path / "base.safetensors",
        tmp_path / "dtd.safetensors",
        heads=[{"path": str(tmp_path / "head_DTD.pt")}],
        data={"dtd": str(tmp_path / "images.npz"), "pets": "hf:timm/oxford-iiit-pet"},
    )
    import_zoo(request, silent)
    manifest = read_manifest(tmp_path / "zoo")
    assert manifest.task_table["dtd"].data == "data/dtd.npz"
    assert manifest.task_table["pets"].data == "hf:timm/oxford-iiit-pet"
    assert len(manifest.task_table["pets"].classes) == 37
    assert len(manifest.task_table["dtd"].classes) == 3
    assert (tmp_path / "zoo" / "data" / "dtd.npz").is_file()
    document = yaml.safe_load((tmp_path / "zoo" / "zoo.yaml").read_text())
    assert document["backbone"]["weights"] == "base.safetensors"


def test_what_a_killed_import_left_is_removed(tmp_path, base, tuned):
    save_file(base, tmp_path / "base.safetensors")
    save_file(tuned["dtd"], tmp_path / "dtd.safetensors")
    from engine.store.owners import this_process

    alive = this_process().split(":")
    dead = "-".join([*alive[:3], "1"])  # this process's number, but of another start
    (tmp_path / f".zoo.{dead}.00.writing" / "experts").mkdir(parents=True)
    done(ask(tmp_path, tmp_path / "base.safetensors", tmp_path / "dtd.safetensors"))
    assert not list(tmp_path.glob(".zoo.*"))


def test_the_engine_imports_from_configured_roots_only(tmp_path, base, tuned, monkeypatch):
    from engine.pipeline.executor import run_inline
    from engine.pipeline.planners import plan_request
    from engine.pipeline.zoos.import_checkpoints import read_summary
    from engine.store import Store

    root = tmp_path / "root"
    write_hf(root / "base", base)
    write_hf(root / "dtd", tuned["dtd"])
    monkeypatch.setenv("MERGELENS_ROOTS", str(root))
    store = Store()
    document = {"base": str(root / "base"), "experts": [{"path": str(root / "dtd")}], "name": "z", "token": "t1"}
    document["preprocess"] = "openai"
    document["out"] = str(store.root / "zoos" / "z")
    for key, value in (("base", "/etc/passwd"), ("out", str(tmp_path / "elsewhere"))):
        with pytest.raises(ZooError, match="outside"):
            plan_request("import", {**document, key: value}, store)
    checked = plan_request("import", {**document, "check": True}, store)
    assert not read_summary(run_inline(checked, store))["faults"]
    plan = plan_request("import", document, store)
    assert plan.result != checked.result
    run_inline(plan, store)
    assert store.zoos.list() == [store.root / "zoos" / "z"]
    store.delete(plan.result)
    run_inline(plan, store)  # the same wish, taken up again after its zoo was written
    again = plan_request("import", {**document, "token": "t2"}, store)
    with pytest.raises(ZooError, match="not empty"):
        run_inline(again, store)


def test_the_command_line_imports_a_folder(tmp_path, base, tuned):
    from typer.testing import CliRunner

    from engine.__main__ import app
    from engine.store import Store

    files = tmp_path / "ViT-tiny"
    write_pickle(files / "zeroshot.pt", base)
    write_pickle(files / "DTD" / "finetuned.pt", tuned["dtd"])
    write_head(files / "head_DTD.pt", torch.randn(47, 16))
    run = CliRunner().invoke
    asked = ["zoo", "import", "--folder", str(files), "--out", str(tmp_path / "zoo")]
    result = run(app, [*asked, "--check"])
    assert result.exit_code == 1
    assert "Fault: The base's preprocessing" in result.output
    asked += ["--preprocess", "openai"]
    result = run(app, [*asked, "--check"])
    assert result.exit_code == 0
    assert "whole pickled module" in result.output
    assert "preprocess: 16 px, bicubic" in result.output
    assert not (tmp_path / "zoo").exists()
    result = run(app, [*asked, "--dtype", "bfloat16"])
    assert result.exit_code == 0, result.output
    zoo = Zoo.open(str(tmp_path / "zoo"))
    assert zoo.weights("dtd").dtype("visual.proj") == torch.bfloat16
    assert zoo.manifest.task_table["dtd"].dataset == "dtd"
    assert Store().zoos.list() == [(tmp_path / "zoo").resolve()]
    assert str(tmp_path / "zoo") in run(app, ["zoo", "list"]).output
    named = [
        "zoo",
        "import",
        "--preprocess",
        "openai",
        "--base",
        str(files / "zeroshot.pt"),
        "--out",
        str(tmp_path / "second"),
    ]
    assert run(app, [*named, "--expert", f"textures={files / 'DTD' / 'finetuned.pt'}"]).exit_code == 0
    assert list(read_manifest(tmp_path / "second").expert_table) == ["textures"]
    assert isinstance(run(app, named).exception, EngineError)
