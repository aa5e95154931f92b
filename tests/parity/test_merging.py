"""Merge methods against numbers made with the authors' code (or written from the equations where there is none)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from engine.catalog.sparse import PcbParams
from engine.catalog.transforms import LwptvParams
from engine.masks import lwptv_masks
from engine.merging.adamerging import combine, entropy
from engine.merging.apply import merge
from engine.merging.assemble import add_to_base
from engine.merging.consensus import tall_masks
from engine.merging.lwptv import lwptv, salience, scale_learned
from engine.merging.masked import MASK, RESCALER, VECTOR, unpack
from engine.merging.pcb import Competition
from engine.merging.row_pruning import keep_probabilities
from engine.merging.spherical import mean_direction
from engine.merging.ties import elected
from engine.recipe import MethodCall
from engine.weights import LazyTaskVectors, Memory
from tests.reference.merging.support import (
    EXPERTS,
    FOLDER,
    TinyContext,
    models,
    output,
    reference_entries,
    tensor_order,
    tensors_of,
    toy_vectors,
    worst_excess,
)

ENTRIES = reference_entries()
DTYPES = {"float64": torch.float64, "float32": torch.float32}
LWPTV = {"lwptv": {"eta": 0.7}}


def case(name: str, method: str, params: dict[str, Any] | None = None, **more: Any) -> Any:
    return pytest.param(name, method, params or {}, more, id=name)


def ties(density: float, how: str, scaling: float) -> dict[str, Any]:
    return {"density": density, "merge": how, "scaling": scaling}


STATIC = [
    case("weight_average", "weight_average"),
    *(case(f"task_arithmetic_l{value}", "task_arithmetic", {"scaling": value}) for value in (0.3, 0.4, 1.0)),
    case("task_negation_e0_l0.5", "task_arithmetic", {"scaling": 0.5}, experts=[0], weights=[-1.0]),
    case("task_analogy_C+B-A_l0.4", "task_arithmetic", {"scaling": 0.4}, experts=[0, 1, 2], weights=[-1.0, 1.0, 1.0]),
    *(
        case(f"ties_k{percent}_{how}_l{scaling}", "ties", ties(percent / 100, how, scaling))
        for percent in (20, 50, 80)
        for how, scaling in (("sum", 0.3), ("mean", 1.0), ("max", 0.3))
    ),
    case("toyfull_ties_k20_sum_l0.3", "ties", ties(0.2, "sum", 0.3), kind="toyfull"),
    case("ties_mergekit_d0.2_norm_l1.0", "ties", {**ties(0.2, "mean", 1.0), "scope": "tensor"}),
    *(case(f"tsvm_K{count}_a1.0", "tsv_m", experts=range(count)) for count in (2, 3, 4)),
    case("tsvm_K4_exclude_proj_pos", "tsv_m", {"matrices": "blocks"}),
    *(
        case(f"lwptv_ta_eta{eta}_l0.3", "task_arithmetic", transforms={"lwptv": {"eta": eta}})
        for eta in (0.5, 0.7, 0.9)
    ),
    case("lwptv_ties_k20_sum_eta0.7_l0.3", "ties", ties(0.2, "sum", 0.3), transforms=LWPTV),
    case("lwptv_ties_k20_mean_eta0.7_l1.0", "ties", ties(0.2, "mean", 1.0), transforms=LWPTV),
    case("toyfull_lwptv_ta_eta0.7_l0.3", "task_arithmetic", kind="toyfull", transforms=LWPTV),
    case("abs_value_layer_ta_eta0.7_l0.3", "task_arithmetic", transforms={"absolute_value": {"eta": 0.7}}),
    *(
        case(f"{short}_{word}_eta0.7_l0.3", "task_arithmetic", transforms={name: {"eta": 0.7, "shared": shared}})
        for short, name in (("pwptv", "pwptv"), ("mwp", "magnitude"))
        for word, shared in (("or", True), ("noor", False))
    ),
    *(
        case(f"breadcrumbs_rowwise_b{b}_g0.1_a0.3", "breadcrumbs", {"beta": b, "gamma": 0.1, "scaling": 0.3})
        for b in (0.15, 0.5)
    ),
    case(
        "breadcrumbs_mergekit_d0.85_g0.1_l0.3",
        "breadcrumbs",
        {"beta": 0.85, "gamma": 0.1, "scaling": 0.3, "scope": "tensor"},
    ),
    *(
        case(f"pcb_r{r}_l{scaling}", "pcb", {"density": r, "scaling": scaling})
        for r, scaling in ((0.05, 1.0), (0.05, 1.2), (0.1, 1.2), (0.2, 1.2))
    ),
    case(
        "pcb_vision_script_r0.05_l1.2", "pcb", {"density": 0.05, "scaling": 1.2, "clip": 0.01, "balance": "normalised"}
    ),
    case("lwptv_pcb_r0.05_l1.2_eta0.7", "pcb", transforms=LWPTV),
    *(case(f"consensus_ta_lam0.4_k{k}_l0.3", "consensus", {"agreeing": k}) for k in (1, 2, 3)),
    *(case(f"localize_stitch_dataless_s{s}", "localize_and_stitch", {"density": s}) for s in (0.1, 0.3)),
    *(case(f"slerp_weights_t{t}", "slerp", {"t": t, "on": "weights"}, experts=[0, 1]) for t in (0.3, 0.5)),
    *(case(f"slerp_taskvec_t{t}", "slerp", {"t": t}, experts=[0, 1]) for t in (0.3, 0.5)),
    case("slerp_taskvec_global_t0.5", "slerp", {"scope": "model"}, experts=[0, 1]),
    case("multislerp_base_uniform", "multislerp"),
    case("multislerp_nobase_uniform", "multislerp", {"on": "weights"}),
    *(case(f"karcher_weights_it{n}", "karcher", {"on": "weights", "max_iterations": n}) for n in (10, 100)),
    case("karcher_taskvec_it100", "karcher", {"max_iterations": 100}),
    case("metagpt", "metagpt"),
    case("model_stock_K2", "model_stock", {"clamp": False}, experts=[0, 1], tolerance="float32"),
    case("model_stock_K4_fusionbench", "model_stock", {"clamp": False}, tolerance="float32"),
    case("model_stock_K4_mergekit_filter0", "model_stock", {"clamp": False, "average": "cosines"}),
    *(case(f"iso_c_K{k}_a1.0", "iso_c", experts=range(k)) for k in (3, 4)),
    *(case(f"iso_cts_K{k}_f0.8_a1.0", "iso_cts", experts=range(k)) for k in (3, 4)),
    *(case(f"opcm_alpha{alpha}", "opcm", {"alpha": alpha}) for alpha in (0.0, 0.5)),
    case("knots_ties_k20_mean_l0.6", "knots"),
    case("knots_ties_k30_sum_l0.3", "knots", {"density": 0.3, "merge": "ties_sum", "scaling": 0.3}),
    case("knots_tv_k100_sum_l0.3", "knots", {"merge": "sum", "scaling": 0.3}),
    *(
        case(f"closed_form_eq20_w{w}", "closed_form", {"omega": float(w), "relative": False})
        for w in ("1e-06", "0.0001", "1")
    ),
    *(case(f"wudi_official_it{n}", "wudi", {"steps": n}) for n in (50, 300)),
    case("wudi_fusionbench_it300", "wudi", {"matrices": "all"}),
    case("doge_ta_sub6_K30_l0.07", "doge"),
    *(
        case(f"wise_ft_e0_a{a}", "task_arithmetic", {"scaling": 1.0}, experts=[0], transforms={"wise_ft": {"alpha": a}})
        for a in (0.3, 0.5)
    ),
    *(
        case(
            f"lines_sum_a{alpha}_b{beta}",
            "task_arithmetic",
            {"scaling": 1.0},
            transforms={"lines": {"alpha_from_norms": False, "alpha": alpha, "beta": beta}},
        )
        for alpha, beta in ((0.25, 0.7), (0.3, 0.7), (0.25, 0.0))
    ),
    case(
        "lines_single_e0_a0.4_b0.6",
        "task_arithmetic",
        {"scaling": 1.0},
        experts=[0],
        transforms={"lines": {"alpha_from_norms": False, "alpha": 0.4, "beta": 0.6}},
    ),
]


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize(("name", "method", "params", "more"), STATIC)
def test_merged_weights(name, method, params, more, precision):
    # "tolerance" stands where the reference itself computes in float32, whatever it is given.
    options = {key: value for key, value in more.items() if key != "tolerance"}
    got = merged_model(method, params, precision, **options)
    check(got, output(name), name, more.get("tolerance", precision))


def merged_model(
    method: str,
    params: dict[str, Any],
    precision: str,
    *,
    kind: str = "toy",
    experts: Sequence[int] = range(4),
    weights: Sequence[float] | None = None,
    transforms: dict[str, dict[str, Any]] | None = None,
    context: TinyContext | None = None,
) -> dict[str, torch.Tensor]:
    names = [EXPERTS[index] for index in experts]
    base, vectors = toy_vectors(kind, names, DTYPES[precision], weights=weights)
    calls = [MethodCall(method=key, params=value) for key, value in (transforms or {}).items()]
    merged = merge(base, vectors, calls, MethodCall(method=method, params=params), context or TinyContext(tuple(names)))
    return tensors_of(merged.weights)


def check(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor], name: str, precision: str) -> None:
    tolerance = ENTRIES[name]["tolerance"][precision]
    assert worst_excess(got, want, tolerance) <= 0


def by_task(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Reference tensors named task0/layer as stacks by layer."""
    layers = [name.removeprefix("task0/") for name in tensors if name.startswith("task0/")]
    return {name: torch.stack([tensors[f"task{k}/{name}"] for k in range(4)]) for name in layers}


def test_every_copied_reference_is_used():
    used = {parameter.id for parameter in STATIC} | SPECIAL
    assert set(ENTRIES) == used
    files = {entry["file"].removeprefix("outputs/") for entry in ENTRIES.values() if "file" in entry}
    assert {path.name for path in (FOLDER / "outputs").iterdir()} == files


SPECIAL = {
    "regmean_a0.9",
    "regmean_a0.95",
    "regmean_a1.0",
    "fisher_norm0",
    "fisher_norm1",
    "multislerp_base_w4321",
    "model_stock_K4_mergekit_filter1",
    *(f"della_{who}_d0.5_e0.15_{what}" for who in ("official", "mergekit") for what in ("probs", "masks", "ta_l0.3")),
    "della_official_elect_mean_l1.1",
    "breadcrumbs_mergekit_d0.3_g0.05_l0.3",
    "tall_masks_lam0.2",
    "tall_masks_lam0.4",
    "tall_masks_lam0.6",
    "tall_masks_lam1.0",
    "tall_task1_lam0.4",
    "pcb_r0.05_scale",
    *(f"dare_p{rate}_{what}" for rate in (0.5, 0.9) for what in ("masks", "ta_l0.3", "ties_k20_sum_l0.3")),
    "random_mask_param_keep0.3_mask",
    "random_mask_param_keep0.3_ta_l0.3",
    "ties_edge_cases",
    "ties_k20_selected_entries",
    "lwptv_edge_cases",
    "lwptv_eta0.5_masks",
    "lwptv_eta0.7_masks",
    "lwptv_eta0.9_masks",
    "emr_unified",
    "emr_masks",
    "emr_task0",
    "emr_task3",
    "adamerging_tw_clamp0",
    "adamerging_tw_clamp1",
    "adamerging_lw_clamp0",
    "adamerging_lw_clamp1",
    "adamergingpp_lw_clamp1",
    "lwptv_tw_adamerging_eta0.7",
    "lwptv_lw_adamerging_eta0.7",
    "lwptv_lw_adamergingpp_eta0.7",
    "entropy_loss",
}


@pytest.mark.parametrize("how", ["sum", "mean", "max"])
@pytest.mark.parametrize("density", [0.25, 0.5, 0.75])
def test_ties_where_magnitudes_and_signs_tie(density, how):
    entry = ENTRIES["ties_edge_cases"]
    rows = torch.tensor(entry["params"]["input"])
    base = Memory({"w": torch.zeros(8)})
    vectors = LazyTaskVectors(base, {f"e{k}": Memory({"w": row}) for k, row in enumerate(rows)})
    call = MethodCall(method="ties", params=ties(density, how, 1.0))
    merged = merge(base, vectors, [], call, TinyContext(vectors.experts))
    assert merged.weights.tensor("w").tolist() == entry["values"][f"k{density * 100:.0f}_{how}"]


@pytest.mark.parametrize("precision", DTYPES)
def test_trimmed_and_elected_task_vectors(precision):
    _, vectors = toy_vectors(dtype=DTYPES[precision])
    found = elected(vectors, 0.2, TinyContext())
    got = {name: found.stack(name) for name in found.names}
    check(got, by_task(output("ties_k20_selected_entries")), "ties_k20_selected_entries", precision)


@pytest.mark.parametrize("eta", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("precision", DTYPES)
def test_lwptv_salience_and_masks(eta, precision):
    name = f"lwptv_eta{eta}_masks"
    names, scores = salience(toy_vectors(dtype=DTYPES[precision])[1])
    want = output(name)
    assert list(names) == tensor_order()
    tolerance = ENTRIES[name]["tolerance"][precision]
    np.testing.assert_allclose(scores, want["salience"].numpy(), rtol=tolerance["rtol"], atol=tolerance["atol"])
    masks, shared = lwptv_masks(scores, eta)
    assert masks.tolist() == want["task_masks"].bool().tolist()
    assert shared.tolist() == want["shared_mask"].bool().tolist()


def test_lwptv_mask_rule():
    values = ENTRIES["lwptv_edge_cases"]["values"]
    for key, eta in (("eta0.7_mask", 0.7), ("eta0.95_mask", 0.95), ("eta1_mask", 1.0)):
        assert lwptv_masks(np.array([values["s"]]), eta)[0][0].astype(int).tolist() == values[key]
    for key, eta in (("tied_eta0.5_mask", 0.5), ("tied_eta0.3_mask", 0.3)):
        assert lwptv_masks(np.array([values["tied_s"]]), eta)[0][0].astype(int).tolist() == values[key]
    for layers, kept in values["kept_for_L_eta0.7"].items():
        assert lwptv_masks(np.arange(1.0, int(layers) + 1)[None], 0.7)[0].sum() == kept
    assert lwptv_masks(np.array([values["s"]]), 0.0)[1].all(), "departure: nothing is pruned at 0"


def test_counting_frozen_layers_equals_having_them():
    frozen = salience(toy_vectors("toyfull")[1])[1]
    visual = salience(toy_vectors()[1])[1]
    assert frozen.shape[1] == visual.shape[1] + 6
    for eta in (0.0, 0.1, 0.3, 0.7, 1.0):
        np.testing.assert_array_equal(lwptv_masks(frozen, eta)[0][:, 6:], lwptv_masks(visual, eta, 6)[0])


@pytest.mark.parametrize("precision", DTYPES)
def test_counting_frozen_parameters_equals_having_them(precision):
    want = output("toyfull_ties_k20_sum_l0.3")
    count = sum(want[name].numel() for name in want if not name.startswith("visual."))
    got = merged_model("ties", {**ties(0.2, "sum", 0.3), "frozen_parameters": count}, precision)
    check(got, {name: want[name] for name in got}, "toyfull_ties_k20_sum_l0.3", precision)


@pytest.mark.parametrize("precision", DTYPES)
def test_emr(precision):
    base, vectors = toy_vectors(dtype=DTYPES[precision])
    merged = merge(base, vectors, [], MethodCall(method="emr"), TinyContext())
    unified = {name: merged.parts[VECTOR + name] for name in vectors.names}
    check(unified, output("emr_unified"), "emr_unified", precision)
    masks = {
        f"task{k}/{name}": unpack(merged.parts[f"{MASK}{task}/{name}"], tensor.shape).to(torch.uint8)
        for k, task in enumerate(EXPERTS)
        for name, tensor in unified.items()
    }
    check(masks, output("emr_masks"), "emr_masks", precision)
    rescalers = [merged.parts[RESCALER + task].item() for task in EXPERTS]
    assert rescalers == pytest.approx(ENTRIES["emr_task0"]["values"]["rescalers"], rel=1e-6)
    for k in (0, 3):
        check(tensors_of(models(base, merged)[EXPERTS[k]]), output(f"emr_task{k}"), f"emr_task{k}", precision)


def given_coefficients(granularity: str, clamp: bool) -> dict[str, torch.Tensor]:
    stored = load_file(FOLDER / "inputs/lambdas.safetensors")
    rows = stored["layer_wise"] if granularity == "lw" else stored["task_wise"].expand(len(tensor_order()), -1)
    return dict(zip(tensor_order(), rows.clamp(0, 1) if clamp else rows, strict=True))


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize(
    ("name", "granularity", "clamp", "pruned", "plus_plus"),
    [
        *((f"adamerging_{grain}_clamp{int(clamp)}", grain, clamp, False, False)
          for grain in ("tw", "lw") for clamp in (False, True)),
        ("adamergingpp_lw_clamp1", "lw", True, False, True),
        ("lwptv_tw_adamerging_eta0.7", "tw", True, True, False),
        ("lwptv_lw_adamerging_eta0.7", "lw", True, True, False),
        ("lwptv_lw_adamergingpp_eta0.7", "lw", True, True, True),
    ],
)  # fmt: skip
def test_adamerging_at_given_coefficients(name, granularity, clamp, pruned, plus_plus, precision):
    base, vectors = toy_vectors(dtype=DTYPES[precision])
    context, params = TinyContext(), LwptvParams(eta=0.7)
    if pruned:
        vectors = lwptv(base, vectors, params, context)
    if plus_plus:
        vectors = elected(vectors, 0.2, context)
    rows = given_coefficients(granularity, clamp)
    merged = add_to_base(base, vectors, lambda layer: combine(rows[layer], vectors.stack(layer)))
    if pruned and granularity == "lw":
        merged = scale_learned(base, vectors, merged, params, context)
    check(tensors_of(merged.weights), output(name), name, precision)


def test_entropy_and_its_gradient():
    want = output("entropy_loss")
    logits = want["logits"].requires_grad_()
    loss = entropy(logits)
    loss.backward()
    torch.testing.assert_close(loss.detach(), want["entropy"].mean(), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(logits.grad, want["grad_of_mean"], rtol=1e-9, atol=1e-11)


def test_lines_takes_alpha_from_the_norms():
    plain = {"alpha_from_norms": False, "alpha": 0.25, "beta": 0.7}
    given = merged_model("task_arithmetic", {"scaling": 1.0}, "float64", transforms={"lines": plain})
    found = merged_model("task_arithmetic", {"scaling": 1.0}, "float64", transforms={"lines": {"beta": 0.7}})
    assert worst_excess(found, given, {"rtol": 1e-9, "atol": 1e-11}) <= 0, "1/K for a sum of four"


def draw_from(masks: dict[str, torch.Tensor]) -> Any:
    """A stand-in for random masks that returns those a reference has saved."""

    def saved(keep: Any, shape: tuple[int, ...], seed: int, method: str, *place: str) -> torch.Tensor:
        name = place[-1] if len(place) == 1 else f"{place[0].replace('expert', 'task')}/{place[1]}"
        assert masks[name].shape == shape
        return masks[name].bool()

    return saved


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("rate", [0.5, 0.9])
def test_dare_with_saved_masks(rate, precision, monkeypatch):
    monkeypatch.setattr("engine.merging.dropping.bernoulli", draw_from(output(f"dare_p{rate}_masks")))
    transforms = {"dare": {"drop_rate": rate}}
    for method, params, suffix in (
        ("task_arithmetic", {"scaling": 0.3}, "ta_l0.3"),
        ("ties", ties(0.2, "sum", 0.3), "ties_k20_sum_l0.3"),
    ):
        name = f"dare_p{rate}_{suffix}"
        check(merged_model(method, params, precision, transforms=transforms), output(name), name, precision)


@pytest.mark.parametrize("precision", DTYPES)
def test_random_mask_with_the_saved_mask(precision, monkeypatch):
    monkeypatch.setattr("engine.merging.dropping.bernoulli", draw_from(output("random_mask_param_keep0.3_mask")))
    name = "random_mask_param_keep0.3_ta_l0.3"
    got = merged_model("task_arithmetic", {"scaling": 0.3}, precision, transforms={"random_mask": {"keep": 0.3}})
    check(got, output(name), name, precision)


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize(("who", "rescale"), [("official", True), ("mergekit", False)])
def test_della_with_saved_masks(who, rescale, precision, monkeypatch):
    name = f"della_{who}_d0.5_e0.15"
    _, vectors = toy_vectors(dtype=DTYPES[precision])
    found = {
        f"task{k}/{layer}": keep_probabilities(vectors.vector(layer, expert), 0.5, 0.15)
        for k, expert in enumerate(EXPERTS)
        for layer in vectors.names
    }
    check(found, output(f"{name}_probs"), f"{name}_probs", precision)
    monkeypatch.setattr("engine.merging.row_pruning.bernoulli", draw_from(output(f"{name}_masks")))
    params = {"rescale": rescale, "elect": False, "scaling": 0.3}
    # The reference's probabilities are float32, so its quotients are known no better.
    check(merged_model("della", params, precision), output(f"{name}_ta_l0.3"), f"{name}_ta_l0.3", "float32")
    if rescale:
        elected_name = "della_official_elect_mean_l1.1"
        check(merged_model("della", {}, precision), output(elected_name), elected_name, "float32")


@pytest.mark.parametrize("precision", DTYPES)
def test_breadcrumbs_by_tensor_does_not_zero_small_tensors(precision):
    """Where int(γ n) is 0 the reference zeroes the tensor by mistake; everywhere else the numbers agree."""
    name = "breadcrumbs_mergekit_d0.3_g0.05_l0.3"
    params = {"beta": 0.3, "gamma": 0.05, "scaling": 0.3, "scope": "tensor"}
    base, _ = toy_vectors()
    got, want = merged_model("breadcrumbs", params, precision), output(name)
    large = [layer for layer in want if int(0.05 * want[layer].numel())]
    assert 0 < len(large) < len(want)
    check({layer: got[layer] for layer in large}, {layer: want[layer] for layer in large}, name, precision)
    for layer in set(want) - set(large):
        assert torch.equal(want[layer], base.tensor(layer).double())
        assert not torch.equal(got[layer].double(), want[layer])


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("strictness", [0.2, 0.4, 0.6, 1.0])
def test_tall_masks(strictness, precision):
    _, vectors = toy_vectors(dtype=DTYPES[precision])
    stacks = {layer: vectors.stack(layer) for layer in vectors.names}
    masks = {layer: tall_masks(stack, stack.sum(dim=0), strictness) for layer, stack in stacks.items()}
    name = f"tall_masks_lam{strictness}"
    check({layer: mask.to(torch.uint8) for layer, mask in masks.items()}, by_task(output(name)), name, precision)


@pytest.mark.parametrize("precision", DTYPES)
def test_tall_model_of_a_task(precision):
    base, vectors = toy_vectors(dtype=DTYPES[precision])
    merged = merge(base, vectors, [], MethodCall(method="tall"), TinyContext())
    got = tensors_of(models(base, merged)["expert1"])
    check(got, output("tall_task1_lam0.4"), "tall_task1_lam0.4", precision)


@pytest.mark.parametrize("precision", DTYPES)
def test_pcb_scores(precision):
    _, vectors = toy_vectors(dtype=DTYPES[precision])
    competition = Competition(vectors, PcbParams(density=0.05), TinyContext())
    got = {name: competition.scores(name)[0].view(4, *vectors.shape(name)) for name in vectors.names}
    check(got, by_task(output("pcb_r0.05_scale")), "pcb_r0.05_scale", precision)


@pytest.mark.parametrize("precision", DTYPES)
def test_multislerp_with_weights(precision):
    base, vectors = toy_vectors(dtype=DTYPES[precision])
    merged = add_to_base(base, vectors, lambda name: mean_direction(vectors.stack(name), [0.4, 0.3, 0.2, 0.1]))
    check(tensors_of(merged.weights), output("multislerp_base_w4321"), "multislerp_base_w4321", precision)


@pytest.mark.parametrize("precision", DTYPES)
def test_model_stock_by_row(precision):
    name = "model_stock_K4_mergekit_filter1"
    want = output(name)
    got = merged_model("model_stock", {"clamp": False, "average": "cosines", "scope": "row"}, precision)
    check({layer: got[layer] for layer in want}, want, name, precision)


class Measured(TinyContext):
    """A context that returns what a reference measured on images."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.stored = load_file(FOLDER / f"inputs/{file}.safetensors")

    def cached(self, expert: str, *arguments: Any) -> dict[str, torch.Tensor]:
        prefix = expert.replace("expert", "task") + "/"
        return {name.removeprefix(prefix): item for name, item in self.stored.items() if name.startswith(prefix)}


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("factor", [0.9, 0.95, 1.0])
def test_regmean_with_saved_inner_products(factor, precision):
    name = f"regmean_a{factor}"
    got = merged_model("regmean", {"off_diagonal": factor}, precision, context=Measured("gram_matrices"))
    check(got, output(name), name, precision)


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("normalise", [False, True])
def test_fisher_with_saved_information(normalise, precision):
    name = f"fisher_norm{int(normalise)}"
    got = merged_model("fisher", {"normalise": normalise}, precision, context=Measured("fisher_diagonals"))
    check(got, output(name), name, precision)


def test_opcm_reports_its_factors():
    base, vectors = toy_vectors()
    merged = merge(base, vectors, [], MethodCall(method="opcm"), TinyContext())
    assert merged.info.details["factor"] == pytest.approx(ENTRIES["opcm_alpha0.5"]["values"]["lambda_t"])
