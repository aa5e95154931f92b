"""Views behind a diagnosis through the pipeline: each against the same thing computed another way."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from scipy.special import stdtrit

from engine.analysis.written import read_array, write_array
from engine.calibration.rollout import look
from engine.catalog import resolve
from engine.errors import EngineError, RecipeError
from engine.features.parts import parts_of
from engine.figures.diagnosis.answer import Scope, gain
from engine.figures.diagnosis.attention import attention_answer
from engine.figures.diagnosis.blame import blame_answer
from engine.figures.diagnosis.document import diagnosis_document
from engine.figures.diagnosis.lens import lens_answer
from engine.figures.diagnosis.remedies import KINDS, effects, remedies_answer
from engine.pipeline.local import make_view, run_recipe
from engine.pipeline.run.encoding import encoder_of
from engine.pipeline.run.plan import plan_run, steps_of
from engine.pipeline.viewing.anew import TrialParams
from engine.pipeline.viewing.models import pictures_of
from engine.pipeline.views import view_of
from engine.pipeline.views.remedies import remedies_of
from engine.recipe import parse_recipe
from engine.report import read_report
from engine.zoo.encoders.architecture import architecture
from engine.zoo.encoders.backbone import load_encoder, to_tensor
from engine.zoo.folder import Zoo
from tests.tiny_zoo import EXPERTS, make_zoo, scattered

TASK = "beta"


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    return scattered(make_zoo(tmp_path_factory.mktemp("zoo") / "tiny"))


def recipe_on(zoo, **changes):
    calibrators = [{"method": "surgery", "params": {"steps": 30, "rank": 4}}]
    document = {"zoo": str(zoo), "merge": {"method": "task_arithmetic"}, "calibrators": calibrators, **changes}
    return resolve(parse_recipe(document))


@pytest.fixture(scope="module")
def recipe(zoo):
    return recipe_on(zoo)


@pytest.fixture(scope="module")
def bundle(recipe, store):
    run_recipe(recipe, store)
    return store.find(plan_run(recipe, store).result)


def made(name, recipe, store, **settings):
    view = view_of(name)
    return view.read(make_view(view, view.ask(recipe, **settings), store))


def right(document):
    return read_array(document)


def answers(zoo, encoder):
    """Right answers of an encoder on all images of the task, by the zoo's head."""
    opened = Zoo.open(str(zoo))
    data, heads = opened.data[TASK], opened.heads([TASK])[0]
    pixels = to_tensor(data.samples("test", np.arange(24)), opened.manifest.backbone.preprocess)
    with torch.no_grad():
        features = torch.nn.functional.normalize(encoder(pixels), dim=1)
    return ((features @ heads[TASK].weight.T).argmax(1).numpy()) == data.labels("test")


def test_leaving_an_expert_out_is_the_run_without_it(recipe, zoo, store, bundle):
    part = made("blame", recipe, store, task=TASK, images=24)["tasks"][TASK]
    assert part["experts"] == list(EXPERTS)
    assert part["own"] == TASK
    assert not part["refused"]
    report = read_report(bundle)
    assert 100 * right(part["right"]["merged"]).mean() == pytest.approx(report.accuracy["merged"][TASK])
    assert 100 * right(part["right"]["expert"]).mean() == pytest.approx(report.accuracy["expert"][TASK])
    fewer = run_recipe(recipe_on(zoo, experts=["beta", "gamma"], calibrators=[]), store)
    assert 100 * right(part["right"]["without/alpha"]).mean() == pytest.approx(fewer.accuracy["merged"][TASK])
    both = run_recipe(recipe_on(zoo, experts=["alpha", "beta"], calibrators=[]), store)
    assert 100 * right(part["right"]["joined/alpha"]).mean() == pytest.approx(both.accuracy["merged"][TASK])
    alone = run_recipe(recipe_on(zoo, experts=["beta"], calibrators=[]), store)
    assert 100 * right(part["right"]["alone"]).mean() == pytest.approx(alone.accuracy["merged"][TASK])
    assert set(part["right"]) == {
        *("pretrained", "merged", "expert", "alone", "joined/alpha", "joined/gamma", "stranger/alpha"),
        *("stranger/gamma", *(f"{what}/{name}" for what in ("without", "replaced") for name in EXPERTS)),
    }


def test_a_random_vector_is_as_long_as_the_experts_and_no_more_alike(zoo):
    from engine.pipeline.viewing.trials import Stranger

    opened = Zoo.open(str(zoo))
    base, expert = opened.weights("base"), opened.weights("alpha")
    stranger = Stranger(base, expert, 0, "alpha")
    again = Stranger(base, expert, 0, "alpha")
    cosines = []
    for name in base.names:
        own, drawn = (weights.tensor(name) - base.tensor(name) for weights in (expert, stranger))
        torch.testing.assert_close(drawn.norm(), own.norm(), rtol=1e-3, atol=1e-4)
        assert torch.equal(stranger.tensor(name), again.tensor(name))
        if own.numel() > 500:
            cosines.append(float((own * drawn).sum() / (own.norm() * drawn.norm())))
    assert max(map(abs, cosines)) < 0.2


def test_an_exchanged_part_is_the_other_models_and_everything_else_stays(recipe, zoo, store, bundle):
    part = made("transplant", recipe, store, task=TASK, images=24)["tasks"][TASK]
    opened = Zoo.open(str(zoo))
    config = architecture(opened.folder, opened.manifest)
    listed = parts_of(encoder_of(opened, TASK), opened.modality.layout_of(config))
    assert [(one["block"], one["kind"]) for one in part["parts"]] == [(block, kind) for block, kind, _ in listed]
    everything = [name for block, kind, names in listed if kind in ("block", "embedding", "read-out") for name in names]
    assert sorted(everything) == sorted(name for name, _ in encoder_of(opened, TASK).named_parameters())
    merged = encoder_of(opened, "merged", store.find(steps_of(recipe, store).merge(0)))
    expert, other = (load_encoder(config, opened.weights(name)) for name in (TASK, part["other"]))
    donors = (merged, expert, "given"), (expert, merged, "taken"), (merged, other, "other")
    for one, (_, _, names) in zip(part["parts"], listed, strict=True):
        for host, donor, exchange in (each for each in donors if each[2] in one):
            state = {name: value.clone() for name, value in host.state_dict().items()}
            state |= {name: donor.state_dict()[name] for name in names}
            mixed = load_encoder(config, opened.weights("base"))
            mixed.load_state_dict(state)
            assert right(one[exchange]).tolist() == answers(zoo, mixed).tolist()
    assert right(part["right"]["merged"]).tolist() == answers(zoo, merged).tolist()


def test_rollout_is_the_product_of_the_modules_own_attention(zoo, recipe, store, bundle):
    opened = Zoo.open(str(zoo))
    encoder, flow = encoder_of(opened, TASK), torch.eye(5)
    pictures = pictures_of(opened, TASK, recipe.probe, 8)
    seen, entered = [], []
    blocks = encoder.transformer.resblocks
    hooks = [
        block.register_forward_hook(lambda module, given, out: entered.append(given[0]), always_call=True)
        for block in blocks
    ]
    with torch.no_grad():
        encoder(torch.cat(list(pictures.batches())))
        for block, x in zip(blocks, entered, strict=True):
            normed = block.ln_1(x)
            seen.append(block.attn(normed, normed, normed, need_weights=True, average_attn_weights=True)[1])
    for hook in hooks:
        hook.remove()
    for shares in seen:
        flow = 0.5 * (shares + torch.eye(5)) @ flow
    found = look(encoder, pictures.batches())
    wanted = flow[:, 0, 1:] / flow[:, 0, 1:].sum(1, keepdim=True)
    torch.testing.assert_close(found.rollout, wanted, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.tokens, entered[-1][:, 1:])
    part = made("attention", recipe, store, task=TASK, images=8)["tasks"][TASK]
    kept = read_array(part["expert"]) * part["unit"]["expert"]
    np.testing.assert_allclose(kept, found.rollout.numpy(), atol=part["unit"]["expert"])
    assert read_array(part["drift"]).shape == (8, 4)
    assert -1 <= part["alike"]["same"] <= 1
    assert part["alike"]["another"] != part["alike"]["same"]


def test_directions_are_of_the_runs_own_features(recipe, store, bundle):
    view = view_of("direction")
    folder = make_view(view, view.ask(recipe), store)
    table = pd.read_parquet(folder / "direction.parquet")
    report, samples = read_report(bundle), pd.read_parquet(bundle / "samples.parquet")
    for task in EXPERTS:
        own = table[table["task"] == task]
        assert 100 * (own["margin"] > 0).mean() == pytest.approx(report.accuracy["merged"][task])
        said = samples[(samples["task"] == task) & (samples["state"] == "merged")]
        assert own["label"].tolist() == said["label"].tolist()
        wrong = (own["margin"] < 0).to_numpy()
        assert own["rival"].to_numpy()[wrong].tolist() == said["prediction"].to_numpy()[wrong].tolist()
    assert view.read(folder)["tasks"][TASK] == {"rank": 2, "dim": 16, "images": 24}


def test_remedies_are_the_runs_with_the_change(recipe, zoo, store, bundle):
    part = made("remedies", recipe, store, task=TASK, images=24)["tasks"][TASK]
    report = read_report(bundle)
    found = {(one["kind"], one["value"]): one for one in part["remedies"]}
    surgery = found["calibrator", "surgery"]
    assert 100 * right(surgery["right"]).mean() == pytest.approx(report.accuracy["surgery"][TASK])
    for task, (count, images) in surgery["others"].items():
        assert 100 * count / images == pytest.approx(report.accuracy["surgery"][task])
    for task, (count, images) in part["others"]["expert"].items():
        assert 100 * count / images == pytest.approx(report.accuracy["expert"][task])
    few = made("remedies", recipe, store, task=TASK, images=8)["tasks"][TASK]
    corrected = next(right(one["right"]) for one in few["remedies"] if one["value"] == "surgery")
    assert corrected.tolist() == right(surgery["right"])[read_array(few["index"])].tolist()
    for kind, value in (("scaling", 0.15), ("without", "gamma"), ("pruning", 0.5), ("random_layers", 0.5)):
        one = found[kind, value]
        asked = {**recipe.model_dump(mode="json"), "calibrators": [], **one["change"]}
        changed = run_recipe(parse_recipe(asked), store)
        assert 100 * right(one["right"]).mean() == pytest.approx(changed.accuracy["merged"][TASK]), kind
        assert set(one["others"]) == {"alpha", "gamma"}
        for task, (count, images) in one["others"].items():
            if task in changed.accuracy["merged"]:
                assert 100 * count / images == pytest.approx(changed.accuracy["merged"][task]), (kind, task)


def test_another_share_of_layers_is_dropped_where_and_as_the_recipe_drops_them(zoo, store):
    dare = {"method": "dare", "params": {"drop_rate": 0.1}}
    pruned = {"method": "lwptv", "params": {"eta": 0.7, "shared": False}}
    recipe = recipe_on(zoo, transforms=[dare, pruned], calibrators=[])
    params = SimpleNamespace(**TrialParams.own(steps_of(recipe, store)), expert=TASK)
    tried = [remedy.change["transforms"] for remedy in remedies_of(params) if remedy.kind == "pruning"]
    asked = [call.model_dump() for call in recipe.transforms]
    assert tried == [[asked[0], {**asked[1], "params": {**asked[1]["params"], "eta": eta}}] for eta in (0.3, 0.5)]


@pytest.fixture(scope="module")
def named(zoo, tmp_path_factory):
    """The zoo, with experts that are not called as their tasks are."""
    folder = tmp_path_factory.mktemp("named") / "tiny"
    shutil.copytree(zoo, folder)
    document = yaml.safe_load((folder / "zoo.yaml").read_text())
    for expert in document["experts"]:
        expert["name"] += "-one"
    (folder / "zoo.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return folder


def test_a_task_whose_own_expert_is_left_out_is_none_of_the_others(named, store):
    recipe = recipe_on(named)
    report, document = run_recipe(recipe, store), made("remedies", recipe, store, task=TASK, images=24)
    part = document["tasks"][TASK]
    part["others"]["merged"] = {"alpha": [12, 24], "gamma": [12, 20]}
    for remedy in part["remedies"]:
        remedy["others"] = {"alpha": [0, 24], "gamma": [14, 20]}
    scope = Scope.of(report, TASK)
    found = {effect.title: effect.others for effect in effects(document, report, scope, {})}
    assert found["leaving alpha-one out"] == pytest.approx(10)
    assert found["leaving gamma-one out"] == pytest.approx(-50)
    assert found["Surgery"] == pytest.approx(-20)
    unit = remedies_answer(document, report, scope, {}, "light").unit
    assert "mean over 2, 20 to 24 images each (where an expert is left out, without its own task" in unit


def test_the_legend_of_what_helps_tells_what_every_colour_is(recipe, store, bundle):
    document, report = made("remedies", recipe, store, task=TASK, images=24), read_report(bundle)
    figure = remedies_answer(document, report, Scope.of(report, TASK), {}, "light").drawings[0].figure
    *bars, marks = figure.data
    kinds = {remedy["kind"] for remedy in document["tasks"][TASK]["remedies"]}
    assert [bar.name for bar in bars] == [title for kind, title in KINDS.items() if kind in kinds]
    assert len({bar.marker.color for bar in bars}) == len(bars), "one colour a kind"
    assert sorted(name for bar in bars for name in bar.y) == sorted(marks.y)
    assert figure.layout.yaxis.categoryarray == marks.y


def test_a_calibrator_that_harms_is_not_said_to_help_and_small_changes_have_titles_of_their_own(recipe, store, bundle):
    document, report = made("remedies", recipe, store, task=TASK, images=24), read_report(bundle)
    part, scope = document["tasks"][TASK], Scope.of(report, TASK)
    part["right"]["merged"] = write_array(np.ones(24, bool))
    for remedy in part["remedies"]:
        remedy["right"] = write_array(np.arange(24) > 0)
        if remedy["kind"] == "scaling":
            remedy["value"] /= 1000
    answer = remedies_answer(document, report, scope, {}, "light")
    assert answer.sentence.startswith("No calibrator helps, the best is Surgery (−4.2 points")
    titles = [effect.title for effect in effects(document, report, scope, {})]
    assert len(set(titles)) == len(titles)
    assert "λ 0.000225" in titles


def test_the_expert_that_changes_most_is_named_also_where_none_costs_anything(recipe, store, bundle):
    document, scope = made("blame", recipe, store, task=TASK, images=24), Scope.of(read_report(bundle), TASK)
    right = document["tasks"][TASK]["right"]
    for known in right:
        right[known] = write_array(np.zeros(24, bool))
    sentence = blame_answer(document, scope, {}, "light").sentence
    assert "does not gain, nor without any other" in sentence
    assert sentence.endswith("alone, no other expert changes anything.")
    right["joined/alpha"], right["joined/gamma"] = (write_array(np.arange(24) < gained) for gained in (1, 6))
    assert "gamma changes most: +25.0 points" in blame_answer(document, scope, {}, "light").sentence


def test_an_image_in_place_of_the_one_that_was_asked_for_is_not_called_by_its_class(recipe, store, bundle):
    document, scope = made("attention", recipe, store, task=TASK, images=8), Scope.of(read_report(bundle), TASK)
    index = read_array(document["tasks"][TASK]["index"]).tolist()
    absent = next(row for row in range(24) if row not in index)
    for one, title in ((index[3], f"Image {index[3]}, the class:"), (absent, f"Image {index[0]}:")):
        answer = attention_answer(document, scope, "light", None, one, "the class")
        assert answer.drawings[-1].alt.startswith(title)
        heads = [note.text.split("<br>") for note in answer.drawings[-1].figure.layout.annotations]
        assert max(len(line) for lines in heads for line in lines) <= 11, "a title is no wider than its picture"


def test_each_picture_says_what_is_measured_in_it(recipe, store, bundle):
    report = read_report(bundle)
    scope = Scope.of(report, TASK, label=0)
    verdict, cka, l1 = lens_answer(made("depth", recipe, store, task=TASK, images=24), report, scope, "light").captioned
    assert verdict[1].unit.startswith("Percent right")
    assert verdict[1].count == "8 of 8"
    assert [caption.unit.split()[0] for _, caption in (cka, l1)] == ["Linear", "L1"]
    assert {caption.count for _, caption in (cka, l1)} == {"24 of 24"}
    answer = blame_answer(made("blame", recipe, store, task=TASK, images=24), scope, {}, "light")
    assert [caption.unit.partition(";")[0] for _, caption in answer.captioned] == [
        "Points of accuracy against the merge of all 3",
        "Points of accuracy against the merge of the task's own expert alone",
    ]
    assert {drawing.figure.layout.xaxis.title.text for drawing in answer.drawings} == {"Change (points)"}, "too wide"
    where = attention_answer(
        made("attention", recipe, store, task=TASK, images=8), Scope.of(report, TASK), "light", None, None
    )
    assert [caption.count for _, caption in where.captioned] == ["8 of 24", "1 of 24"]
    page = diagnosis_document(report, "a run", scope, {theme: [answer] for theme in ("light", "dark")})
    assert page.count("expert alone; lines are 95 % intervals, paired by image; n = 8 of 8") == 1


def test_without_a_calibrator_surgery_is_tried(zoo, store):
    part = made("remedies", recipe_on(zoo, calibrators=[]), store, task=TASK, images=24)["tasks"][TASK]
    assert [one["value"] for one in part["remedies"] if one["kind"] == "calibrator"] == ["surgery"]


def test_merges_by_task_say_what_they_cannot_do(zoo, store):
    by_task = recipe_on(zoo, merge={"method": "emr"}, calibrators=[])
    part = made("blame", by_task, store, task=TASK, images=24)["tasks"][TASK]
    assert f"without/{TASK}" in part["refused"]
    assert "without/alpha" in part["right"]
    part = made("transplant", by_task, store, task=TASK, images=24)["tasks"][TASK]
    assert right(part["right"]["merged"]).shape == (24,)
    part = made("remedies", by_task, store, task=TASK, images=24)["tasks"][TASK]
    gone = next(one for one in part["remedies"] if one["kind"] == "without" and one["value"] == "alpha")
    assert "alpha" not in gone["others"]


def test_merges_by_image_are_refused_where_they_have_no_parts(zoo, store):
    routed = recipe_on(zoo, merge={"method": "twin"}, calibrators=[])
    for name in ("transplant", "attention"):
        with pytest.raises(RecipeError, match="other weights for every image"):
            made(name, routed, store, task=TASK, images=24)


def test_a_task_that_is_not_there_is_refused_with_the_nearest(recipe, store):
    with pytest.raises(RecipeError, match="Did you mean 'beta'"):
        made("blame", recipe, store, task="betta", images=24)


def test_the_lens_of_the_last_block_is_the_output(recipe, store, bundle):
    part = made("depth", recipe.model_copy(update={"calibrators": ()}), store, task=TASK, images=24)["tasks"][TASK]
    report = read_report(bundle)
    labels = read_array(part["lens"]["labels"])
    for state, rows in part["lens"]["said"].items():
        said = read_array(rows)
        assert said.shape == (part["blocks"] + 1, 24)
        assert said[-1].tolist() == said[-2].tolist()
        assert 100 * (said[-1] == labels).mean() == pytest.approx(report.accuracy[state][TASK])
    assert set(part["lens"]["said"]) == {"pretrained", "merged", "expert"}


def test_one_task_alone_is_part_of_all(recipe, store):
    alone = recipe.model_copy(update={"calibrators": ()})
    whole, one = (made("depth", alone, store, images=24, **task) for task in ({}, {"task": TASK}))
    assert list(one["tasks"]) == [TASK]
    assert one["tasks"][TASK] == whole["tasks"][TASK]
    assert "task" not in json.loads(view_of("depth").ask(alone).model_dump_json())


def test_a_handful_of_images_has_a_wide_interval():
    few, none = np.ones(3, bool), np.zeros(3, bool)
    assert gain(none, few).words == "+100.0 points (± 100.0)"
    assert not gain(none, few).clear
    assert gain(none, none).half == 100
    assert gain(np.zeros(60, bool), np.zeros(60, bool)).half == pytest.approx(5)
    assert gain(np.zeros(7, bool), np.ones(7, bool)).clear
    assert gain(none[:1], few[:1]).words == "from wrong to right"
    before, after = np.zeros(10, bool), np.arange(10) < 5
    assert gain(before, after).half == pytest.approx(stdtrit(9, 0.975) * 100 * after.std(ddof=1) / np.sqrt(10))
    assert gain(np.tile(before, 10), np.tile(after, 10)).half == pytest.approx(1.96 * 5.025, rel=1e-3)


def test_attention_of_a_model_that_is_not_finite_is_refused(zoo, store, tmp_path):
    folder = tmp_path / "broken"
    shutil.copytree(zoo, folder)
    file = folder / "experts" / "beta.safetensors"
    save_file({name: 1e30 * tensor for name, tensor in load_file(file).items()}, file)
    with pytest.raises(EngineError, match="is not finite, so there is no attention"):
        made("attention", recipe_on(folder, calibrators=[]), store, task=TASK, images=8)
