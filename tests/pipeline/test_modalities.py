"""Every merge method, transform and calibrator of features over both kinds of data, and whole runs on texts."""

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from engine.alignment.symmetry import permuted, random_permutations
from engine.alignment.transformer import transformer_symmetry
from engine.analysis.written import read_array
from engine.calibration import fit_deep
from engine.calibration.rollout import look
from engine.catalog import CALIBRATORS, MERGE_METHODS, TRANSFORMS
from engine.errors import DataError, MergeError, RecipeError
from engine.features import encode
from engine.figures.diagnosis.answer import Scope
from engine.figures.diagnosis.reading import reading_answer
from engine.merging.apply import merge
from engine.merging.wemoe import perceptrons
from engine.pipeline.local import align_experts, make_view, run_recipe
from engine.pipeline.run.context import MergeContext
from engine.pipeline.run.findings import findings
from engine.pipeline.run.plan import plan_run, steps_of
from engine.pipeline.tools import StepTools
from engine.pipeline.viewing.models import images_of, pictures_of
from engine.pipeline.views import view_of
from engine.recipe import MethodCall, Probe, parse_recipe
from engine.types import PerSample, PerTask
from engine.weights import LazyTaskVectors, Memory
from engine.zoo.check import check_zoo
from engine.zoo.encoders.backbone import architecture, load_encoder, outline, prefix_of, to_tensor
from engine.zoo.folder import Zoo
from engine.zoo.importing.convert import import_zoo
from engine.zoo.importing.request import parse_request
from engine.zoo.kinds import known_kinds
from engine.zoo.modalities import MODALITIES
from engine.zoo.texts.occlusion import occluded
from tests import made_text_models, tiny_text_zoo
from tests.tiny_text_zoo import make_text_zoo
from tests.tiny_zoo import make_zoo

CPU = torch.device("cpu")
SMALL = {"rank": 4, "steps": 20, "batch_size": 8}
PLAIN = MethodCall(method="task_arithmetic")
MAKERS = {"image": make_zoo, "text": make_text_zoo}


@pytest.fixture(scope="module", params=MODALITIES)
def opened(request, tmp_path_factory):
    return Zoo.open(str(MAKERS[request.param](tmp_path_factory.mktemp(request.param) / "tiny")))


@pytest.fixture(scope="module")
def text_zoo(tmp_path_factory):
    return make_text_zoo(tmp_path_factory.mktemp("text") / "tiny")


def methods():
    for row in MERGE_METHODS.values():
        if "factors" in row.needs:
            continue  # of experts with adapters; see test_lora_factors
        yield pytest.param(row, (), MethodCall(method=row.name, params=dict(row.quick)), id=row.name)
    for row in TRANSFORMS.values():
        yield pytest.param(row, (MethodCall(method=row.name, params=dict(row.quick)),), PLAIN, id=row.name)


@pytest.mark.parametrize(("row", "transforms", "call"), list(methods()))
def test_every_merge_method_and_transform_makes_an_encoder_of_either_kind(opened, store, row, transforms, call):
    names = list(opened.manifest.expert_table)[: getattr(row, "max_experts", None) or 3]
    base, experts = opened.weights("base"), {name: opened.weights(name) for name in names}
    digests = {name: f"{opened.modality.name}-{name}" for name in ("base", *names)}
    context = MergeContext(opened, tuple(names), digests, Probe(), 0, StepTools(store), device="cpu")
    merged = merge(base, LazyTaskVectors(base, experts), transforms, call, context)
    config = architecture(opened.folder, opened.manifest)
    samples = to_tensor(opened.data[names[0]].samples("test", range(4)), opened.preprocess())
    if isinstance(merged, PerSample):
        encoder = merged.rebuild(base, merged.parts, context.forward)
    elif isinstance(merged, PerTask):
        encoder = load_encoder(config, merged.rebuild(base, merged.parts, names[0]))
    else:
        encoder = load_encoder(config, merged.weights)
    features = encoder(samples)
    assert features.shape == (4, 16)
    assert features.isfinite().all()
    before = load_encoder(config, base)(samples)
    assert not torch.equal(features, before)


@pytest.mark.parametrize("row", [row for row in CALIBRATORS.values() if not row.deep], ids=lambda row: row.name)
def test_every_calibrator_of_features_brings_either_kind_nearer_to_the_expert(opened, row):
    config, name = architecture(opened.folder, opened.manifest), next(iter(opened.manifest.expert_table))
    samples = opened.data[name].samples("test")
    near, far = (
        encode(load_encoder(config, opened.weights(model)), samples, opened.preprocess(), CPU, lambda f, m="": None)
        for model in (name, "base")
    )
    params = row.params(**{"steps": 60, "batch_size": 8})
    calibrator = row.load()()
    calibrator.fit({name: far}, {name: near}, params, 0)
    corrected = calibrator.correct(far, name)
    assert (corrected - near).abs().mean() < (far - near).abs().mean()


def test_names_of_tensors_begin_as_declared(opened):
    config = architecture(opened.folder, opened.manifest)
    assert prefix_of(config) == opened.modality.layout.prefix
    assert {prefix_of(config) + name for name in outline(config).state_dict()} == set(opened.weights("base").names)
    assert set(opened.modality.layout.sampled) & set(opened.weights("base").names)


def test_shifts_change_samples_and_repeat(opened):
    task = next(iter(opened.manifest.task_table))
    prepared = opened.modality.prepared(opened.data[task].samples("test"), opened.preprocess())
    for kind in opened.modality.shifts["usual"]:
        once, again, other = (
            opened.modality.shifted(prepared, kind, task, seed, opened.preprocess()) for seed in (0, 0, 1)
        )
        assert once.shape == prepared.shape
        assert once.dtype == prepared.dtype
        assert torch.equal(once, again)
        assert not torch.equal(once, prepared)
        assert kind in ("blur", "contrast", "negative") or not torch.equal(once, other)


def test_a_run_on_texts_leaves_what_a_run_on_images_leaves(text_zoo, store, tmp_path):
    asked = {
        "zoo": str(text_zoo),
        "transforms": [{"method": "lwptv", "params": {"eta": 0.3}}],
        "merge": {"method": "ties"},
        "calibrators": [{"method": "surgery", "params": {"rank": 16, "steps": 60, "batch_size": 8}}],
    }
    report = run_recipe(parse_recipe(asked), store, view={"method": "pca", "images": 40}, out=tmp_path / "run")
    assert set(report.states()) == {"pretrained", "merged", "surgery", "expert"}
    assert set(report.accuracy["merged"]) == {"alpha", "beta", "gamma", "outside"}
    for part in ("recipe.yaml", "merged.safetensors", "calibrators/surgery.safetensors", "samples.parquet"):
        assert (tmp_path / "run" / part).is_file()
    bias = {state: report.bias[state].l1["alpha"] for state in ("merged", "surgery")}
    assert bias["surgery"] < bias["merged"]


def test_a_zoo_of_texts_is_checked(text_zoo, tmp_path):
    said = check_zoo(str(text_zoo), lambda fraction, message="": None)
    assert any("texts of up to 12 tokens" in line for line in said)
    assert any("alpha: 24 test, 12 val, 24 adapt texts, 3 classes" in line for line in said)
    assert not [line for line in said if "image" in line]


@pytest.mark.parametrize("row", [row for row in CALIBRATORS.values() if row.deep], ids=lambda row: row.name)
def test_every_calibrator_inside_an_encoder_brings_either_kind_nearer_to_the_expert(opened, row):
    config, name = architecture(opened.folder, opened.manifest), next(iter(opened.manifest.expert_table))
    samples = to_tensor(opened.data[name].samples("test"), opened.preprocess())
    expert, merged = (load_encoder(config, opened.weights(model)) for model in (name, "base"))
    given = {"coefficients": "frozen"} if "coefficients" in row.params.model_fields else {}
    params, calibrator = row.params(**{"steps": 80, "batch_size": 8, "rank": 16, **given}), row.load()()
    teacher = calibrator.teach(expert, samples, params)
    fit_deep(calibrator, merged, {name: samples}, {name: teacher}, params, 0)
    with torch.no_grad():
        near, far = expert(samples), merged(samples)
    corrected = calibrator.correct_features(merged, samples, name)
    assert (corrected - near).abs().mean() < (far - near).abs().mean()


def test_a_run_on_texts_has_calibrators_inside_the_encoder_and_views_of_them(text_zoo, store):
    calls = [
        {"method": "interv_merge", "params": {"rank": 2, "steps": 40, "batch_size": 8}},
        {"method": "surgery_v2", "params": {"rank": 4, "steps": 20, "batch_size": 8}},
        {"method": "interv_merge", "name": "joint", "params": {"steps": 5, "batch_size": 8, "coefficients": "layer"}},
    ]
    recipe = parse_recipe({"zoo": str(text_zoo), "merge": {"method": "task_arithmetic"}, "calibrators": calls})
    report = run_recipe(recipe, store)
    names = ("interv_merge", "surgery_v2", "joint")
    assert set(report.states()) == {"pretrained", "merged", *names, "expert"}
    assert all(layer.startswith("bert.") for layer in report.calibrators["joint"].merging["layers"])
    depth = view_of("depth")
    part = depth.read(make_view(depth, depth.ask(recipe, images=12), store))["tasks"]["alpha"]
    stitching = view_of("stitching")
    stitched = stitching.read(make_view(stitching, stitching.ask(recipe, images=24), store))["tasks"]["alpha"]
    for name in names:
        assert len(part["states"][name]["class"]["l1"]) == 2
        assert stitched["states"][name]["begins"][-1] == pytest.approx(report.accuracy[name]["alpha"])
    assert stitched["states"]["interv_merge"]["begins"][0] == pytest.approx(report.accuracy["expert"]["alpha"])


@pytest.mark.parametrize("positions", ["first", "middle", "last", "patches", "all"])
def test_only_the_class_token_of_texts_is_changed(positions, text_zoo, store):
    calls = [{"method": "interv_merge", "params": {"positions": positions}}]
    asked = parse_recipe({"zoo": str(text_zoo), "calibrators": calls})
    errors = [found.text for found in findings(asked, Zoo.open(str(text_zoo))) if found.level == "error"]
    assert len(errors) == 1
    assert "Choose `positions: class`" in errors[0]
    with pytest.raises(RecipeError, match="differ in length"):
        plan_run(asked, store)


def test_attention_to_words_is_that_of_the_rollout(text_zoo, store):
    view, recipe = view_of("attention"), parse_recipe({"zoo": str(text_zoo)})
    document = view.read(make_view(view, view.ask(recipe, images=12, task="alpha"), store))
    part, opened = document["tasks"]["alpha"], Zoo.open(str(text_zoo))
    samples = images_of(opened, "alpha", recipe.probe, 12)
    config = architecture(opened.folder, opened.manifest)
    expert = load_encoder(config, opened.weights("alpha"))
    found = look(expert, [samples.pixels], opened.modality.layout_of(config))
    words = opened.data["alpha"].words(samples.pixels.numpy())
    for row, text in enumerate(part["texts"]):
        assert text["index"] == samples.rows[row]
        assert text["words"] == words[row]
        places = occluded(samples.pixels[row])[0] - 1
        share = found.rollout[row, places]
        assert text["expert"] == pytest.approx((share / share.sum()).tolist(), abs=1e-4)
        assert sum(text["merged"]) == pytest.approx(1, abs=1e-3)
        assert all(value >= 0 for value in text["drift"])
    assert -1 <= part["alike"]["another"] <= 1
    assert part["alike"]["same"] > part["alike"]["another"], "experts hardly moved from the base"
    scope = Scope("alpha", "Alpha", ("circle", "square", "star"))
    answer = reading_answer(document, scope, "light", None, "")
    assert answer.question == "Where in the text?"
    assert "another text of the task" in answer.sentence
    single, frequent = answer.drawings
    assert [caption.images for _, caption in answer.captioned] == [1, len(part["texts"])]
    assert len(single.table) == len(part["texts"][0]["words"])
    drawn = [word for line in single.figure.data[0].customdata for word in line if word]
    assert drawn == part["texts"][0]["words"]
    every = [
        text["expert"][place] * len(text["words"])
        for text in part["texts"]
        for place, word in enumerate(text["words"])
        if word == frequent.table["word"][0]
    ]
    assert frequent.table["expert"][0] == pytest.approx(sum(every) / len(every))
    with pytest.raises(DataError, match="None of"):
        reading_answer(document, Scope("alpha", "Alpha", scope.classes, None, (9999,)), "light", None)


@pytest.mark.parametrize("method", ["weight_matching", "activation_matching"])
def test_units_of_a_shuffled_text_expert_are_found_again(method, text_zoo, store):
    view, recipe = view_of("connection"), parse_recipe({"zoo": str(text_zoo)})
    asked = {"start": "alpha", "end": "beta", "points": 3, "images": 24, "method": method}
    shuffled, plain = (
        view.read(make_view(view, view.ask(recipe, **asked, shuffle=shuffle), store)) for shuffle in (True, False)
    )
    units = shuffled["units"]
    assert set(units["moved"]) == {"residual", *(f"{kind}_{n}" for kind in ("units", "keys", "values") for n in (0, 1))}
    assert set(units["found"].values()) == {1.0}
    assert units["apart"] < 1e-10
    assert set(units["zips"]) == {"units_0", "units_1"}
    for task in ("alpha", "beta"):
        first, second = shuffled["tasks"][task], plain["tasks"][task]
        assert first["aligned"]["loss"] == pytest.approx(second["plain"]["loss"], rel=1e-4)
        assert first["plain"]["loss"][1] != pytest.approx(second["plain"]["loss"][1], rel=1e-4)
        assert list(first["deviation"]) == [f"encoder.layer.{number}.intermediate.dense" for number in (0, 1)]


def test_an_expert_of_texts_from_another_base_is_aligned(tmp_path, store):
    folder = make_text_zoo(tmp_path / "tiny")
    symmetry, files = transformer_symmetry(tiny_text_zoo.CONFIG), ("experts/alpha.safetensors", "base.safetensors")
    wanted = load_file(folder / files[0])
    for file, target in zip(files, (files[0], "theirs.safetensors"), strict=True):
        own = {name.removeprefix("bert."): tensor for name, tensor in load_file(folder / file).items()}
        moved = permuted(own, symmetry, random_permutations(symmetry, own, 3))
        save_file({f"bert.{name}": tensor.contiguous() for name, tensor in moved.items()}, folder / target)
    document = yaml.safe_load((folder / "zoo.yaml").read_text())
    document["experts"][0]["base"] = "theirs.safetensors"
    (folder / "zoo.yaml").write_text(yaml.safe_dump(document))
    record = align_experts({"zoo": str(folder)}, store)["alpha"]
    assert record["after"] > record["before"]
    assert record["apart"] < 1e-10
    found = load_file(folder / "aligned" / "alpha.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


@pytest.mark.parametrize("name", ["depth", "transplant"])
def test_blocks_of_text_encoders_are_followed_and_exchanged(name, text_zoo, store):
    view, recipe = view_of(name), parse_recipe({"zoo": str(text_zoo)})
    document = view.read(make_view(view, view.ask(recipe, images=12), store))
    for task in ("alpha", "beta", "gamma"):
        part = document["tasks"][task]
        if name == "depth":
            assert part["blocks"] == 2
            for state in ("merged", "pretrained"):
                assert all(value > 0 for value in part["states"][state]["class"]["l1"])
                last = read_array(part["lens"]["said"][state])[-2:]
                assert last[0].tolist() == last[1].tolist()  # the last block's lens is the model's own answer
        else:
            kinds = [one["kind"] for one in part["parts"]]
            assert kinds == ["embedding", *(["block", "attention", "mlp", "norm"] * 2), "read-out"]
            whole = sum(one["parameters"] for one in part["parts"] if one["kind"] in ("embedding", "block", "read-out"))
            assert whole == sum(parameter.numel() for parameter in tiny_text_zoo.model().parameters())
            parts = [one["parameters"] for one in part["parts"][2:5]]
            assert sum(parts) == part["parts"][1]["parameters"]


def test_text_encoders_are_stitched_part_by_part(text_zoo, store):
    """Every cut is the encoder whose first parts are one model's and whose others are the other's."""
    view = view_of("stitching")
    recipe = parse_recipe({"zoo": str(text_zoo), "calibrators": [{"method": "surgery", "params": SMALL}]})
    document = view.read(make_view(view, view.ask(recipe, images=24), store))
    opened, task = Zoo.open(str(text_zoo)), "alpha"
    found = document["tasks"][task]
    assert found["blocks"] == 2
    assert set(found["states"]) == {"pretrained", "merged", "surgery", "expert"}
    config = architecture(opened.folder, opened.manifest)
    pictures = pictures_of(opened, task, recipe.probe, 24)
    models = {name: load_encoder(config, opened.weights(name)) for name in ("base", task)}
    order = ("embeddings.", "encoder.layer.0.", "encoder.layer.1.", "pooler.")
    for kind, first, second in (("begins", "base", task), ("ends", task, "base")):
        for cut in range(5):
            mixed = load_encoder(config, opened.weights(second))
            state = models[first].state_dict()
            mixed.load_state_dict({n: state[n] for n in state if n.startswith(order[:cut])}, strict=False)
            expected = 100 * pictures.right(mixed.to(pictures.device)).mean()
            assert found["states"]["pretrained"][kind][cut] == pytest.approx(expected)
    plain, repaired = (found["states"][state]["begins"] for state in ("merged", "surgery"))
    assert repaired[:-1] == plain[:-1]  # a calibrator of the output acts where the read-out is its network's
    cosine = found["linearity"]["merged"]["cosine"]
    assert len(cosine) == 3


@pytest.mark.parametrize("name", ["attention", "connection", "depth", "energy", "stitching", "transplant"])
def test_blocks_of_a_model_that_writes_its_answers_are_refused(name, tmp_path, store):
    base, experts = made_text_models.t5(tmp_path)
    data = made_text_models.texts(tmp_path / "n.jsonl", ("yes", "no"), numbers=False)
    items = [{"name": name, "path": str(path)} for name, path in experts.items()]
    asked = {"base": str(base), "experts": items, "name": "brought", "out": str(tmp_path / "zoo"), "length": 12}
    import_zoo(parse_request({**asked, "data": {"answers": str(data)}}), lambda fraction, message="": None)
    view = view_of(name)
    run = steps_of(parse_recipe({"zoo": str(tmp_path / "zoo")}), store)
    with pytest.raises(RecipeError, match="blocks of t5 encoders"):
        view.plan(run, view.request.model_construct(recipe=run.recipe))


def test_energy_of_texts_is_that_of_the_tokens_that_are_there(text_zoo, store):
    view, recipe = view_of("energy"), parse_recipe({"zoo": str(text_zoo)})
    document = view.read(make_view(view, view.ask(recipe, images=8, rank=4), store))
    opened = Zoo.open(str(text_zoo))
    config = architecture(opened.folder, opened.manifest)
    base, expert = (load_encoder(config, opened.weights(name)) for name in ("base", "alpha"))
    assert document["matrices"] == [f"encoder.layer.{n}.attention.self.{part}" for n in range(2) for part in "qv"]
    for task, kind in (("alpha", "own"), ("beta", "others"), ("gamma", "others")):
        samples = images_of(opened, task, recipe.probe, 8).pixels
        there, given = samples[:, 0] != 0, []
        assert not there.all()
        hook = base.encoder.layer[1].attention.self.value.register_forward_pre_hook(
            lambda _, x, given=given: given.append(x[0])
        )
        base(samples)
        hook.remove()
        rows = given[0][there].double()
        change = [model.encoder.layer[1].attention.self.value.weight.double() for model in (base, expert)]
        directions = torch.linalg.svd(change[1] - change[0]).Vh[:4]
        share = float((rows @ directions.T).square().sum() / rows.square().sum())
        if kind == "own":
            assert document["experts"]["alpha"]["own"][3] == pytest.approx(share, rel=1e-3)
        else:
            parts = document["experts"]["alpha"].setdefault("seen", [])
            parts.append(share)
    found = document["experts"]["alpha"]
    assert found["others"][3] == pytest.approx(sum(found["seen"]) / 2, rel=1e-3)
    assert found["random"] == [4 / 16] * 4


def test_mixing_perceptrons_needs_some():
    base, moved = (Memory({"bert.pooler.dense.weight": torch.full((2, 2), value)}) for value in (0.0, 1.0))
    with pytest.raises(MergeError, match="perceptrons of transformer blocks"):
        perceptrons(LazyTaskVectors(base, {"alpha": moved}))


def test_the_table_of_methods_says_which_kinds_of_data_they_know(opened):
    assert opened.modality.many in known_kinds()
