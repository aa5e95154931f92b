"""References of IntervMerge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...calibration import IntervMerge
from ...calibration.interventions import FUNCTIONS
from ...calibration.tower import Tower
from ...catalog.calibrators import IntervMergeParams
from ..measure import Check, Found
from ..reference import CalibratorReference
from .encoder import sizes, small_encoder

CONSTRAINED = {"rotation": "R", "source": "W", "bias": "b"}
FREE = {"source": "W1", "bias": "b1", "target": "W2", "target_bias": "b2"}
OFFICIAL = {
    "source": "learned_source.weight",
    "bias": "learned_source.bias",
    "target": "proj_layer.weight",
    "target_bias": "proj_layer.bias",
}


def names_of(function: str) -> dict[str, str]:
    """The references' names of a function's parameters."""
    return FREE if function in ("noreft", "nodireft") else CONSTRAINED


def one_function(reference: CalibratorReference, name: str, precision: str, function: str) -> Found:
    """Output, loss and gradients of a function of an intervention."""
    numbers, theirs = reference.numbers(name, precision), names_of(function)
    parts, delta = FUNCTIONS[function]
    leaves = {part: numbers[theirs[part]].clone().requires_grad_() for part in parts}
    output = numbers["h"] + delta(numbers["h"], leaves)
    loss = (output - numbers["target"]).abs().mean()
    loss.backward()
    got: dict[str, Any] = {"output": output, "l1": loss}
    got |= {f"grad_{theirs[part]}": leaf.grad for part, leaf in leaves.items()}
    if "rotation" in leaves:
        got["RRt"] = leaves["rotation"] @ leaves["rotation"].T
    return Found(got, {key: numbers[key] for key in got})


def mini(reference: CalibratorReference, name: str, precision: str, function: str, where: str) -> Found:
    """Interventions on a slice of a token's dimensions."""
    numbers, facts, theirs = reference.numbers(name, precision), reference.facts(name), names_of(function)
    width = numbers["h"].shape[-1]
    changed = int(str(facts["changed_dims"]).split()[0])
    block = facts["layer_index"] if where == "shifted" else 0
    config = IntervMergeParams(rank=facts["r"], function=function, mini=where, mini_dims=changed, blocks=(block,))
    calibrator = IntervMerge()
    shape = {"dim": width, "width": width, "blocks": 12, "tokens": numbers["h"].shape[1]}
    stack = calibrator.reset(("A",), shape, config, dtype=numbers["h"].dtype)
    suffixes = [f"_{number}" for number in range(calibrator.shapes()["bias"][2])] if theirs is FREE else [""]
    places = [
        (part, (0, 0, 0, k), theirs[part] + suffix) for part in calibrator.shapes() for k, suffix in enumerate(suffixes)
    ]
    for part, place, key in places:
        getattr(calibrator, part).data[place] = numbers[key]
    # The tokens of one image as images of one token.
    output = calibrator.change(numbers["h"].view(-1, 1, width), 0, slice(None)).view(numbers["output"].shape)
    stack.gradients.zero_()
    loss = (output - numbers["target"]).abs().mean()
    loss.backward()
    got: dict[str, Any] = {"output": output, "l1": loss}
    got |= {f"grad_{key}": getattr(calibrator, part).grad[place] for part, place, key in places}
    return Found(got, {key: numbers[key] for key in got})


def each_module(calibrator: IntervMerge) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
    """The references' name of every module, with its place in the stacked tensors."""
    for place, block in enumerate(calibrator._blocks()):
        for number, token in enumerate(calibrator._tokens()):
            yield f"block{block}.tok{token}", (0, place, number, 0)


def inside(reference: CalibratorReference, name: str, precision: str, positions: str, blocks: str) -> Found:
    """Interventions inside an encoder: features, loss and the gradients of every module."""
    numbers, facts = reference.numbers(name, precision), reference.facts(name)
    rank = next(len(value) for key, value in numbers.items() if key.endswith(".W1"))
    config, calibrator = IntervMergeParams(rank=rank, positions=positions, blocks=blocks), IntervMerge()
    calibrator.reset(("A",), sizes(facts), config, dtype=numbers["images"].dtype)
    for module, place in each_module(calibrator):
        for part, theirs in FREE.items():
            getattr(calibrator, part).data[place] = numbers[f"{module}.{theirs}"]
    merged, expert = (small_encoder(numbers, facts, owner) for owner in ("merged", "expert"))
    images, tower = numbers["images"], Tower(merged)
    teacher = calibrator.teach(expert, images, config)
    loss = calibrator.losses(calibrator.student(tower, calibrator.prefix(tower, images), slice(None)), teacher[None])
    loss.sum().backward()
    got: dict[str, Any] = {
        "feature_teacher": teacher,
        "feature_merged_no_intervention": IntervMerge().correct_features(merged, images, "A"),
        "feature_student": calibrator.correct_features(merged, images, "A"),
        "l1": loss,
    }
    for module, place in each_module(calibrator):
        got |= {f"{module}.grad_{theirs}": getattr(calibrator, part).grad[place] for part, theirs in FREE.items()}
    return Found(got, {key: numbers[key] for key in got})


class MergedStudent(nn.Module):
    """An encoder whose weights are replaced at every call, with a calibrator inside."""

    def __init__(self, visual: nn.Module, calibrator: IntervMerge) -> None:
        super().__init__()
        self.visual, self.calibrator = visual, [calibrator]

    def forward(self, images: Tensor) -> Tensor:
        """The student's features."""
        tower, calibrator = Tower(self.visual), self.calibrator[0]
        return calibrator.student(tower, calibrator.prefix(tower, images), slice(None))[0]


def joint(reference: CalibratorReference, name: str, precision: str) -> Found:
    """Trained together with merging coefficients; the calibrator is as ever, the coefficients move beside it."""
    numbers, facts = reference.numbers(name, precision), reference.facts(name)
    got: dict[str, Any] = {}
    for mode, updates in (("single", 1), ("dup3_official", 3)):
        found = _joint(numbers, facts, updates)
        got |= {f"{mode}_{key}": value for key, value in found.items() if f"{mode}_{key}" in numbers}
    return Found(got, {key: numbers[key] for key in got})


def _joint(numbers: Mapping[str, Tensor], facts: Mapping[str, Any], updates: int) -> dict[str, Tensor]:
    """The losses, the first step and the final state; the program's modules are updated ``updates`` times a step."""
    base, expert = (small_encoder(numbers, facts, owner) for owner in ("base", "expert"))
    frozen = {key: value.detach() for key, value in base.named_parameters()}
    moved = {key: value.detach() - frozen[key] for key, value in expert.named_parameters()}
    calibrator, modules = IntervMerge(), range(facts["vit"]["blocks"])
    rank = len(numbers["init.A.0.0.learned_source.bias"])
    stack = calibrator.reset(("A",), sizes(facts), IntervMergeParams(rank=rank), dtype=numbers["images"].dtype)
    for place in modules:
        for part, theirs in OFFICIAL.items():
            getattr(calibrator, part).data[0, place, 0, 0] = numbers[f"init.A.{place}.0.{theirs}"]
    raw = numbers["init_lambdas_raw"].clone().requires_grad_()
    student = MergedStudent(base, calibrator)
    adam, beside = torch.optim.Adam(list(calibrator.parameters()), lr=1e-3), torch.optim.Adam([raw], lr=1e-3)
    losses, found = [], {}
    for step, images in enumerate(numbers["images"]):
        scale = raw.clamp(0, 1)
        weights = {f"visual.{key}": frozen[key] + scale[row, 0] * moved[key] for row, key in enumerate(frozen)}
        feature = torch.func.functional_call(student, weights, (images,))
        with torch.no_grad():
            teacher = calibrator.teach(expert, images, calibrator.config)
        loss = (feature - teacher).abs().mean()
        stack.gradients.zero_()
        raw.grad = None
        loss.backward()
        if step == 0:
            found = {"step0_feature_student": feature.detach(), "step0_feature_teacher": teacher}
            found |= {"step0_grad_lambdas_raw": raw.grad.clone()}
            found |= {f"step0_grad.{key}": value for key, value in _official(calibrator, modules, "grad").items()}
        losses.append(loss.detach())
        for _ in range(updates):
            adam.step()
        beside.step()
    found |= {f"final.{key}": value for key, value in _official(calibrator, modules, "data").items()}
    return {**found, "losses": torch.stack(losses), "final_lambdas_raw": raw.detach()}


def _official(calibrator: IntervMerge, modules: range, what: str) -> dict[str, Tensor]:
    return {
        f"A.{place}.0.{theirs}": getattr(getattr(calibrator, part), what)[0, place, 0, 0].clone()
        for place in modules
        for part, theirs in OFFICIAL.items()
    }


CHECKS: dict[str, Check] = {
    "interv_fn_LobiReFT": partial(one_function, function="lobireft"),
    "interv_fn_ConsReFT": partial(one_function, function="consreft"),
    "interv_fn_DiReFT": partial(one_function, function="direft"),
    "interv_fn_LoReFT": partial(one_function, function="loreft"),
    "interv_fn_NoReFT_default": partial(one_function, function="noreft"),
    "interv_fn_NodiReFT_not_in_table7": partial(one_function, function="nodireft"),
    "interv_mini_default_slice0": partial(mini, function="noreft", where="start"),
    "interv_mini_bias_slice0": partial(mini, function="lobireft", where="start"),
    "interv_mini_bias_shift": partial(mini, function="lobireft", where="shifted"),
    "interv_mini_multi4x16": partial(mini, function="noreft", where="four"),
    "interv_tiny_vit_cls_all_blocks": partial(inside, positions="class", blocks="all"),
    "interv_tiny_vit_cls_every_second": partial(inside, positions="class", blocks="every_second"),
    "interv_tiny_vit_patch_tokens": partial(inside, positions="patches", blocks="all"),
    "interv_tiny_vit_all_tokens": partial(inside, positions="all", blocks="all"),
    "interv_joint_lambda_training": joint,
}
