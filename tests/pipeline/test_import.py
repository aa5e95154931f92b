"""Checkpoints of every format become the same zoo; what does not belong together is refused or warned about."""

import json

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize

from engine.errors import Cancelled, CheckpointError, EngineError, ZooError
from engine.manifest import read_manifest
from engine.zoo.check import check_zoo
from engine.zoo.folder import Zoo
from engine.zoo.heads import read_heads
from engine.zoo.importing.convert import import_zoo
from engine.zoo.importing.request import parse_request
from engine.zoo.importing.survey import survey
from tests.made_checkpoints import clip, moved, visual_of, write_head, write_hf, write_pickle
from tests.tiny_zoo import CONFIG

QUICK = {**CONFIG, "quick_gelu": True}


def silent(fraction, message=""):
    pass


@pytest.fixture(scope="module")
def base():
    return visual_of(clip())


@pytest.fixture(scope="module")
def tuned(base):
    """Two experts; the first keeps the base's projection."""
    return {"cars": moved(base, 1, keep=("visual.proj",)), "dtd": moved(base, 2, keep=("visual.proj",))}


def ask(tmp_path, base, *experts, **more):
    """A request; experts are paths or (name, path)."""
    items = [{"name": e[0], "path": str(e[1])} if isinstance(e, tuple) else {"path": str(e)} for e in experts]
    document = {"base": str(base), "experts": items, "name": "brought", "out": str(tmp_path / "zoo"), **more}
    if str(base).endswith((".safetensors", ".bin", "b.pt")) and "architecture" not in more:
        (tmp_path / "config").mkdir(exist_ok=True)
        document["architecture"] = str(tmp_path / "config" / "tiny.json")
        (tmp_path / "config" / "tiny.json").write_text(json.dumps(CONFIG))
    return parse_request(document)


def done(request):
    summary = import_zoo(request, silent)
    return Zoo.open(request.out), summary


def agrees(weights, expected, tolerance=0.0):
    assert set(weights.names) == set(expected)
    for name, tensor in expected.items():
        assert torch.allclose(weights.tensor(name), tensor, rtol=0, atol=tolerance), name


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
    assert not summary["warnings"]
    assert check_zoo(str(zoo.folder), silent)


def test_one_hugging_face_file_and_gelu(tmp_path, base, tuned):
    write_hf(tmp_path / "base", base, quick_gelu=False)
    write_hf(tmp_path / "birds", tuned["dtd"], quick_gelu=False)
    zoo, _ = done(ask(tmp_path, tmp_path / "base", ("birds", tmp_path / "birds" / "model.safetensors")))
    agrees(zoo.weights("birds"), tuned["dtd"])
    assert zoo.manifest.backbone.quick_gelu is False


def test_the_formats_compute_the_same_features(tmp_path, base):
    from engine.zoo.backbone import architecture, load_encoder

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
    for ours, theirs in (("ln_1", "layer_norm1"), ("ln_2", "layer_norm2"), ("attn.out_proj", "self_attn.out_proj"),
                         ("mlp.c_fc", "mlp.fc1"), ("mlp.c_proj", "mlp.fc2")):  # fmt: skip
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


def write_adapter(folder, base, *, modules=("q_proj", "fc1"), prefix="vision_model.", **options):
    """A LoRA adapter, and what merging it must give."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "fan_in_fan_out": False, "bias": "none", **options}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    generator, tensors, expected = torch.Generator().manual_seed(5), {}, dict(base)
    width, hidden = 32, 64
    for layer in range(2):
        block = f"visual.transformer.resblocks.{layer}."
        for module, (ours, third, rows, columns) in {
            "q_proj": ("self_attn", 0, width, width), "v_proj": ("self_attn", 2, width, width),
            "out_proj": ("self_attn", -1, width, width), "fc1": ("mlp", -1, hidden, width),
        }.items():  # fmt: skip
            if module not in modules:
                continue
            rank = config.get("rank_pattern", {}).get(module, config["r"])
            alpha = config.get("alpha_pattern", {}).get(module, config["lora_alpha"])
            scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
            down = torch.randn(rank, columns, generator=generator)
            up = torch.randn(rows, rank, generator=generator)
            place = f"base_model.model.{prefix}encoder.layers.{layer}.{ours}.{module}"
            tensors |= {f"{place}.lora_A.weight": down, f"{place}.lora_B.weight": up}
            delta = scale * (up.double() @ down.double()).float()
            if third >= 0:
                name = f"{block}attn.in_proj_weight"
                expected[name] = expected[name].clone()
                expected[name].chunk(3)[third].add_(delta)
            else:
                name = f"{block}{'mlp.c_fc' if module == 'fc1' else 'attn.out_proj'}.weight"
                expected[name] = expected[name] + delta
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder, expected


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


def test_families_that_train_different_tensors_are_not_mixed_silently(tmp_path, base, tuned):
    write_pickle(tmp_path / "zeroshot.pt", base)
    write_pickle(tmp_path / "DTD" / "finetuned.pt", moved(base, 9))  # with its projection
    write_hf(tmp_path / "clip-vit-base-patch32_stanford-cars", tuned["cars"], projection=False)
    request = ask(
        tmp_path, tmp_path / "zeroshot.pt", tmp_path / "DTD" / "finetuned.pt",
        tmp_path / "clip-vit-base-patch32_stanford-cars",
    )  # fmt: skip
    found = survey(request, silent)
    assert not found.faults
    assert any("Two families" in warning for warning in found.warnings)
    alone = survey(request.model_copy(update={"experts": request.experts[:1]}), silent)
    assert not any("Two families" in warning for warning in alone.warnings)


def test_an_expert_of_another_base_is_warned_about(tmp_path, base):
    save_file(base, tmp_path / "base.safetensors")
    save_file(visual_of(clip(seed=7)), tmp_path / "other.safetensors")
    found = survey(ask(tmp_path, tmp_path / "base.safetensors", tmp_path / "other.safetensors"), silent)
    assert any("another model" in warning for warning in found.warnings)


def test_everything_wrong_is_said_at_once(tmp_path, base):
    save_file(base, tmp_path / "base.safetensors")
    wide = visual_of(clip(config={**QUICK, "embed_dim": 24}))
    save_file(wide, tmp_path / "wide.safetensors")
    (tmp_path / "broken.pt").write_bytes(b"PK\x03\x04 and no more")
    heads = [{"path": str(write_head(tmp_path / "head_DTD.pt", torch.randn(4, 16), bias=0.5))}]
    request = ask(
        tmp_path, tmp_path / "base.safetensors", tmp_path / "wide.safetensors", tmp_path / "broken.pt",
        tmp_path / "missing.pt", heads=heads,
    )  # fmt: skip
    with pytest.raises(ZooError) as caught:
        import_zoo(request, silent)
    text = str(caught.value)
    for words in ("visual.proj", "broken.pt", "missing.pt", "bias"):
        assert words in text
    assert not (tmp_path / "zoo").exists()


def test_a_value_that_is_not_finite_leaves_nothing_behind(tmp_path, base):
    save_file(base, tmp_path / "base.safetensors")
    broken = moved(base, 3)
    broken["visual.transformer.resblocks.1.mlp.c_proj.weight"][0, 0] = float("nan")
    save_file(broken, tmp_path / "dtd.safetensors")
    with pytest.raises(CheckpointError, match="NaN"):
        import_zoo(ask(tmp_path, tmp_path / "base.safetensors", tmp_path / "dtd.safetensors"), silent)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.safetensors", "config", "dtd.safetensors"]


def test_a_cancelled_import_leaves_nothing_behind(tmp_path, base, tuned):
    save_file(base, tmp_path / "base.safetensors")
    save_file(tuned["dtd"], tmp_path / "dtd.safetensors")

    def stop(fraction, message=""):
        if fraction > 0.5:
            raise Cancelled("Cancelled.")

    with pytest.raises(Cancelled):
        import_zoo(ask(tmp_path, tmp_path / "base.safetensors", tmp_path / "dtd.safetensors"), stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.safetensors", "config", "dtd.safetensors"]


def test_an_existing_folder_is_left_alone(tmp_path, base, tuned):
    save_file(base, tmp_path / "base.safetensors")
    save_file(tuned["dtd"], tmp_path / "dtd.safetensors")
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "mine.txt").write_text("mine")
    with pytest.raises(ZooError, match="not empty"):
        import_zoo(ask(tmp_path, tmp_path / "base.safetensors", tmp_path / "dtd.safetensors"), silent)
    assert (tmp_path / "zoo" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        (torch.randn(4, 16), "norms"),
        (torch.full((4, 16), float("nan")), "finite"),
        (torch.zeros(4, 16), "norms"),
        (normalize(torch.randn(4, 16), dim=1) * 1e6, "scale"),
    ],
)
def test_heads_that_are_no_zero_shot_heads_are_refused(tmp_path, rows, word):
    from engine.zoo.importing.heads import read_brought_heads

    save_file({"weight": rows}, tmp_path / "head.safetensors")
    with pytest.raises(CheckpointError, match=word):
        read_brought_heads(tmp_path / "head.safetensors")


def test_weights_alone_make_a_zoo_that_merges(tmp_path, base, tuned):
    from engine.pipeline.files import merge_recipe
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
        tmp_path, tmp_path / "base.safetensors", tmp_path / "dtd.safetensors",
        heads=[{"path": str(tmp_path / "head_DTD.pt")}],
        data={"dtd": str(tmp_path / "images.npz"), "birds": "hf:someone/birds"},
    )  # fmt: skip
    import_zoo(request, silent)
    manifest = read_manifest(tmp_path / "zoo")
    assert manifest.task_table["dtd"].data == "data/dtd.npz"
    assert manifest.task_table["birds"].data == "hf:someone/birds"
    assert (tmp_path / "zoo" / "data" / "dtd.npz").is_file()
    document = yaml.safe_load((tmp_path / "zoo" / "zoo.yaml").read_text())
    assert document["backbone"]["weights"] == "base.safetensors"


@pytest.mark.parametrize(
    ("change", "word"),
    [({"experts": []}, "experts"), ({"name": "../up"}, "name"), ({"dtype": "int8"}, "dtype"), ({"bsae": "x"}, "bsae")],
)
def test_requests_are_validated(tmp_path, change, word):
    document = {"base": "b", "experts": [{"path": "e"}], "name": "n", "out": "o", **change}
    with pytest.raises(EngineError, match=word):
        parse_request(document)


def test_what_no_file_says_is_assumed_with_a_warning_and_can_be_corrected(tmp_path):
    config = {"embed_dim": 8, "vision_cfg": {"image_size": 32, "patch_size": 16, "width": 768, "layers": 1}}
    from open_clip.model import _build_vision_tower

    tower = _build_vision_tower(8, config["vision_cfg"])
    tensors = {f"visual.{name}": tensor.half() for name, tensor in tower.state_dict().items()}
    save_file(tensors, tmp_path / "base.safetensors")
    save_file(moved(tensors, 1), tmp_path / "dtd.safetensors")
    request = ask(tmp_path, tmp_path / "base.safetensors", tmp_path / "dtd.safetensors", architecture="")
    found = survey(request, silent)
    assert found.architecture.config["quick_gelu"] is True
    assert any("QuickGELU is assumed" in warning for warning in found.warnings)
    corrected = survey(request.model_copy(update={"quick_gelu": False}), silent)
    assert corrected.architecture.config["quick_gelu"] is False
    assert not corrected.warnings


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"hidden_size": "32"}, "hidden_size"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_attention_heads": 5}, "heads"),
        ({"vision_config": [1]}, "vision_config"),
        ({"layer_norm_eps": "small"}, "layer_norm_eps"),
        ({"hidden_act": "relu"}, "activation"),
        ({"model_type": "siglip"}, "siglip"),
        ({"num_hidden_layers": 3}, "layers"),
    ],
)
def test_configs_that_do_not_fit_are_refused(tmp_path, base, change, word):
    folder = write_hf(tmp_path / "base", base)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    found = survey(ask(tmp_path, folder, ("e", write_hf(tmp_path / "e", base))), silent)
    assert any(word in fault for fault in found.faults)


def test_an_index_may_only_name_files_beside_it(tmp_path, base):
    write_hf(tmp_path / "base", base)
    folder = write_hf(tmp_path / "e", base, shards=2)
    index = folder / "model.safetensors.index.json"
    text = index.read_text()
    for bad in ("../base/model.safetensors", "missing.safetensors"):
        index.write_text(text.replace("model-00001-of-00002.safetensors", bad))
        found = survey(ask(tmp_path, tmp_path / "base", ("e", folder)), silent)
        assert len(found.faults) == 1


def test_what_a_killed_import_left_is_removed(tmp_path, base, tuned):
    save_file(base, tmp_path / "base.safetensors")
    save_file(tuned["dtd"], tmp_path / "dtd.safetensors")
    from engine.store.owners import this_process

    alive = this_process().split(":")
    dead = "-".join([*alive[:3], "1"])  # this process's number, but of another start
    (tmp_path / f".zoo.{dead}.00.importing" / "experts").mkdir(parents=True)
    done(ask(tmp_path, tmp_path / "base.safetensors", tmp_path / "dtd.safetensors"))
    assert not list(tmp_path.glob(".zoo.*"))


def test_the_engine_imports_from_configured_roots_only(tmp_path, base, tuned, monkeypatch):
    from engine.pipeline.executor import run_inline
    from engine.pipeline.importing import read_summary
    from engine.pipeline.plan import plan_request
    from engine.store import Store

    root = tmp_path / "root"
    write_hf(root / "base", base)
    write_hf(root / "dtd", tuned["dtd"])
    monkeypatch.setenv("MERGELENS_ROOTS", str(root))
    store = Store()
    document = {"base": str(root / "base"), "experts": [{"path": str(root / "dtd")}], "name": "z", "token": "t1"}
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
    assert "whole pickled module" in result.output
    assert not (tmp_path / "zoo").exists()
    result = run(app, [*asked, "--dtype", "bfloat16"])
    assert result.exit_code == 0, result.output
    zoo = Zoo.open(str(tmp_path / "zoo"))
    assert zoo.weights("dtd").dtype("visual.proj") == torch.bfloat16
    assert zoo.manifest.task_table["dtd"].dataset == "dtd"
    assert Store().zoos.list() == [(tmp_path / "zoo").resolve()]
    assert str(tmp_path / "zoo") in run(app, ["zoo", "list"]).output
    named = ["zoo", "import", "--base", str(files / "zeroshot.pt"), "--out", str(tmp_path / "second")]
    assert run(app, [*named, "--expert", f"textures={files / 'DTD' / 'finetuned.pt'}"]).exit_code == 0
    assert list(read_manifest(tmp_path / "second").expert_table) == ["textures"]
    assert isinstance(run(app, named).exception, EngineError)
