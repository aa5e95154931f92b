"""Merges that cannot be carried out, or that mean nothing, say what to do."""

import shutil

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from engine.catalog import MERGE_METHODS, TRANSFORMS, params_of, resolve
from engine.errors import Cancelled, MergeError, RecipeError
from engine.merging.apply import merge
from engine.pipeline.executor import run_inline
from engine.pipeline.local import preflight_recipe, run_recipe
from engine.pipeline.preflight.estimate import estimate, gather
from engine.pipeline.rates import Rates
from engine.pipeline.run.plan import plan_run
from engine.pipeline.tools import Silent
from engine.recipe import MethodCall, parse_recipe
from engine.store import Store
from engine.zoo.folder import Zoo
from tests.reference.merging.support import TinyContext, tensors_of, toy_vectors
from tests.tiny_zoo import make_zoo


@pytest.fixture
def zoo(tmp_path):
    return make_zoo(tmp_path / "tiny")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store", database_url=f"sqlite:///{tmp_path / 'runs.sqlite'}")


def bounds_of(field):
    """One value below and one above what a number's parameter allows."""
    for limit in field.metadata:
        kind = type(limit).__name__
        if kind in ("Ge", "Gt"):
            low = getattr(limit, kind.lower())
            yield low - 1 if kind == "Ge" else low
        if kind in ("Le", "Lt"):
            high = getattr(limit, kind.lower())
            yield high + 1 if kind == "Le" else high


CASES = [
    pytest.param(row, name, value, id=f"{row.name}-{name}-{value:g}")
    for row in (*MERGE_METHODS.values(), *TRANSFORMS.values())
    for name, field in row.params.model_fields.items()
    if field.annotation in (int, float)
    for value in bounds_of(field)
]


def test_every_number_has_two_bounds_and_is_refused_outside_them():
    assert len(CASES) == 2 * len({(case.values[0].name, case.values[1]) for case in CASES}) > 100
    for case in CASES:
        row, name, value = case.values
        with pytest.raises(RecipeError, match=name) as refused:
            params_of(row, {name: value})
        said = str(refused.value)
        assert row.title in said
        assert "greater than" in said or "less than" in said, said
        for nothing in (float("nan"), "many"):
            with pytest.raises(RecipeError, match=name):
                params_of(row, {name: nothing})


def drop(folder, key):
    document = yaml.safe_load((folder / "zoo.yaml").read_text())
    del document[key]
    (folder / "zoo.yaml").write_text(yaml.safe_dump(document))


def without_heads(folder):
    drop(folder, "heads")


def without_validation(folder):
    for path in (folder / "data").glob("*.npz"):
        with np.load(path) as arrays:
            kept = {name: arrays[name] for name in arrays.files if not name.startswith("val_")}
        np.savez(path, **kept)


def without_images(folder):
    document = yaml.safe_load((folder / "zoo.yaml").read_text())
    for task in document["tasks"]:
        del task["data"]
    (folder / "zoo.yaml").write_text(yaml.safe_dump(document))


UNMET = {
    "adamerging": (without_heads, "needs classification heads.*choose another method"),
    "doge_am": (without_heads, "needs classification heads.*choose another method"),
    "model_tailor": (without_images, "learns from images.*choose a method that needs no images"),
    "regmean": (without_images, "learns from images.*choose a method that needs no images"),
    "localize_and_stitch_learned": (without_validation, "labelled validation images.*add them, or choose another"),
    "evolutionary": (without_validation, "labelled validation images.*add them, or choose another"),
}


@pytest.mark.parametrize("method", UNMET)
def test_a_method_whose_needs_are_not_met_is_refused_before_anything_runs(zoo, store, method):
    spoil, message = UNMET[method]
    spoil(zoo)
    with pytest.raises(RecipeError, match=message):
        run_recipe(parse_recipe({"zoo": str(zoo), "merge": {"method": method}}), store)
    assert not list(store.artefacts())


def failing(monkeypatch, times):
    """A decomposition that does not converge the first few times."""
    real, calls = torch.linalg.svd, []

    def svd(matrix, full_matrices=True):
        calls.append(matrix.dtype)
        if len(calls) <= times:
            raise torch.linalg.LinAlgError("linalg.svd: the algorithm failed to converge")
        return real(matrix, full_matrices=full_matrices)

    monkeypatch.setattr(torch.linalg, "svd", svd)
    return calls


DECOMPOSING = {
    "tsv_m": {},
    "iso_c": {},
    "iso_cts": {},
    "knots": {},
    "opcm": {},
    "subspace_boosting": {},
    "ho_gsvd": {},
    "dop": {"steps": 1},
    "doge": {"steps": 1},
    "twin": {"epochs": 1, "examples": 4},
}


@pytest.mark.parametrize("method", DECOMPOSING)
def test_a_decomposition_that_never_converges_is_an_error_that_names_the_matrix(monkeypatch, method):
    failing(monkeypatch, 10**9)
    base, vectors = toy_vectors(dtype=torch.float32)
    call = MethodCall(method=method, params=DECOMPOSING[method])

    def everything():
        return tensors_of(merge(base, vectors, [], call, TinyContext()).weights)

    with pytest.raises(MergeError, match=r"decomposition of .*does not converge.*choose a method without"):
        everything()


def test_a_decomposition_that_fails_in_float32_is_repeated_in_float64(monkeypatch):
    base, vectors = toy_vectors(dtype=torch.float32)
    call = MethodCall(method="iso_c")
    name = "visual.transformer.resblocks.0.mlp.c_fc.weight"
    plain = merge(base, vectors, [], call, TinyContext()).weights.tensor(name)
    calls = failing(monkeypatch, 1)
    again = merge(base, vectors, [], call, TinyContext()).weights.tensor(name)
    assert calls == [torch.float32, torch.float64]
    assert again.dtype == torch.float32
    torch.testing.assert_close(again, plain, atol=1e-6, rtol=1e-5)


def twin_of_alpha(zoo):
    shutil.copy(zoo / "experts" / "alpha.safetensors", zoo / "experts" / "beta.safetensors")


def test_identical_experts_are_named_in_the_report_and_before_the_run(zoo, store):
    twin_of_alpha(zoo)
    recipe = parse_recipe({"zoo": str(zoo)})
    (warning,) = [text for text in run_recipe(recipe, store).warnings if "same weights" in text]
    assert warning == "Experts 'alpha', 'beta': the same weights, which count 2 times. Keep one of them."
    found = [finding.text for finding in preflight_recipe(recipe, store).findings if finding.level == "warning"]
    assert any("'alpha', 'beta' have the same weights" in text for text in found)


def test_families_that_train_different_tensors_are_named_in_the_report(zoo, store, command):
    assert not [text for text in run_recipe(parse_recipe({"zoo": str(zoo)}), store).warnings if "fine-tuned in" in text]
    frozen = load_file(zoo / "experts" / "alpha.safetensors")
    frozen["visual.proj"] = load_file(zoo / "base.safetensors")["visual.proj"]
    save_file(frozen, zoo / "experts" / "alpha.safetensors")
    (warning,) = [
        text for text in run_recipe(parse_recipe({"zoo": str(zoo)}), store).warnings if "fine-tuned in" in text
    ]
    assert warning.startswith("visual.proj was fine-tuned in beta, gamma and kept at the base's values in alpha.")
    files = [
        argument for name in ("alpha", "beta") for argument in ("--expert", zoo / "experts" / f"{name}.safetensors")
    ]
    arguments = ["merge", "--base", zoo / "base.safetensors", *files, "--out", zoo.parent / "merged.safetensors"]
    called = command(*arguments)
    assert called.code == 0
    assert "Warning: visual.proj was fine-tuned in beta" in called.out


def test_an_expert_that_is_the_base_is_named_in_the_report(zoo, store):
    shutil.copy(zoo / "base.safetensors", zoo / "experts" / "gamma.safetensors")
    warnings = run_recipe(parse_recipe({"zoo": str(zoo)}), store).warnings
    assert any("'gamma': the same weights as the base" in text and "Choose other files" in text for text in warnings)


def test_lwptv_on_experts_without_a_difference_says_that_nothing_is_left(zoo, store):
    twin_of_alpha(zoo)
    chosen = {"zoo": str(zoo), "experts": ["alpha", "beta"]}
    recipe = parse_recipe({**chosen, "transforms": [{"method": "lwptv"}]})
    warnings = run_recipe(recipe, store).warnings
    assert any("LwPTV pruned every layer" in text and "Lower the pruning ratio" in text for text in warnings)
    assert not [text for text in run_recipe(parse_recipe(chosen), store).warnings if "pruned" in text]


class StopsAt(TinyContext):
    """Cancels at the n-th report."""

    left = 5

    def progress(self, fraction, message=""):
        super().progress(fraction, message)
        self.left -= 1
        if self.left < 0:
            raise Cancelled("Cancelled.")


SEARCHES = {
    "evolutionary": {"evaluations": 60, "examples": 8},
    "adamerging": {"steps": 50, "batch_size": 4},
    "concrete": {"steps": 50, "batch_size": 4},
    "twin": {"epochs": 50, "examples": 8},
    "wemoe": {"steps": 50, "batch_size": 4},
}


@pytest.mark.parametrize("method", SEARCHES)
def test_a_search_that_is_cancelled_half_way_stops(method):
    base, vectors = toy_vectors(dtype=torch.float32)
    context = StopsAt()
    with pytest.raises(Cancelled):
        merge(base, vectors, [], MethodCall(method=method, params=SEARCHES[method]), context)
    assert len(context.fractions) == 6


class Impatient(Silent):
    """Asks to stop when a step has reported a few times."""

    seen = 0

    def progress(self, fraction, message):
        self.seen += "earching" in message or "andidate" in message

    def cancelled(self):
        return self.seen > 3


def test_a_search_that_is_cancelled_leaves_nothing_and_runs_when_asked_again(zoo, store, monkeypatch):
    monkeypatch.setattr("engine.pipeline.tools.PROGRESS_INTERVAL", 0)  # a quick search is over before it has said much
    merge_call = {"method": "evolutionary", "params": {"evaluations": 12, "examples": 4}}
    recipe = parse_recipe({"zoo": str(zoo), "merge": merge_call})
    plan, monitor = plan_run(recipe, store), Impatient()
    with pytest.raises(Cancelled):
        run_inline(plan, store, monitor)
    assert monitor.seen > 3, "it was searching"
    assert store.find(plan.result) is None
    assert store.find(next(step.key for step in plan.steps if step.name == "merge")) is None
    assert run_recipe(recipe, store).status == "finished"


def test_learned_masks_are_estimated_by_their_epochs(zoo):
    def merging(**params):
        call = {"method": "localize_and_stitch_learned", "params": {"examples": 64, **params}}
        recipe = resolve(parse_recipe({"zoo": str(zoo), "merge": call}))
        return estimate(recipe, gather(Zoo.open(str(zoo)), recipe), Rates()).parts["merge"]

    assert merging(epochs=1000) > 20 * merging(epochs=10)
