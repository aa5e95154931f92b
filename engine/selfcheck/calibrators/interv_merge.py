"""References of IntervMerge."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...calibration import IntervMerge
from ...calibration.coefficients import LinearMerge
from ...calibration.deep_updates import deep_update
from ...calibration.interventions import FUNCTIONS
from ...calibration.tower import Tower, frozen
from ...catalog.deep_calibrators import TENSORS, IntervMergeParams
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
    """Return the references' names of a function's parameters."""
    return FREE if function in ("noreft", "nodireft") else CONSTRAINED


def one_function(reference: CalibratorReference, name: str, precision: str, function: str) -> Found:
    """Return output, loss and gradients of a function of an intervention."""
    numbers, theirs = reference.numbers(name, precision), names_of(function)
    parts, delta = TENSORS[function], FUNCTIONS[function]
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
    """Intervene on a slice of a token's dimensions."""
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
    """Return the references' name of every module, with its place in the stacked tensors."""
    for place, block in enumerate(calibrator._blocks()):
        for number, token in enumerate(calibrator._tokens()):
            yield f"block{block}.tok{token}", (0, place, number, 0)


def inside(reference: CalibratorReference, name: str, precision: str, positions: str, blocks: str) -> Found:
    """Intervene inside an encoder: features, loss and the gradients of every module."""
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


def joint(reference: CalibratorReference, name: str, precision: str) -> Found:
    """Train together with merging coefficients, with and without the program's triple registration."""
    numbers, facts = reference.numbers(name, precision), reference.facts(name)
    got: dict[str, Any] = {}
    for mode, registration in (("single", "once"), ("dup3_official", "triple")):
        found = _joint(numbers, facts, registration)
        got |= {f"{mode}_{key}": value for key, value in found.items() if f"{mode}_{key}" in numbers}
    return Found(got, {key: numbers[key] for key in got})


@dataclass
class _Given:
    """A feed of given batches."""

    batches: Iterator[tuple[tuple[Tensor], Tensor]]

    def next(self) -> tuple[tuple[Tensor], Tensor]:
        """Return the next batch."""
        return next(self.batches)


def _joint(numbers: Mapping[str, Tensor], facts: Mapping[str, Any], registration: str) -> dict[str, Tensor]:
    """Return the losses, the first step's gradients and the final state."""
    base, expert = (small_encoder(numbers, facts, owner) for owner in ("base", "expert"))
    given = {key: value.detach() for key, value in base.named_parameters()}
    moved = {key: (value.detach() - given[key])[None] for key, value in expert.named_parameters()}
    merge = LinearMerge(given, moved, numbers["init_lambdas_raw"], ("expert",))
    rank = len(numbers["init.A.0.0.learned_source.bias"])
    config = IntervMergeParams(rank=rank, coefficients="layer", registration=registration)
    calibrator, modules, tower = IntervMerge(), range(facts["vit"]["blocks"]), Tower(base)
    stack = calibrator.reset(("A",), sizes(facts), config, dtype=numbers["images"].dtype)
    for place in modules:
        for part, theirs in OFFICIAL.items():
            getattr(calibrator, part).data[0, place, 0, 0] = numbers[f"init.A.{place}.0.{theirs}"]
    teachers = [calibrator.teach(expert, images, config) for images in numbers["images"]]
    with frozen(base):
        student = calibrator.join(tower, merge, stack)
        student.backward(numbers["images"][0], teachers[0][None], slice(None))
        found = {"step0_feature_teacher": teachers[0], "step0_grad_lambdas_raw": student.learned.grad.clone()}
        found |= {f"step0_grad.{key}": value for key, value in _official(calibrator, modules, "grad").items()}
        found["step0_feature_student"] = _features(calibrator, base, merge, numbers["images"][0])
        pairs = zip(numbers["images"], teachers, strict=True)
        feed = _Given(((images,), teacher[None]) for images, teacher in pairs)
        update = deep_update(calibrator, tower, stack, feed, student)
        losses = torch.cat([update() for _ in teachers])
    found |= {f"final.{key}": value for key, value in _official(calibrator, modules, "data").items()}
    return {**found, "losses": losses, "final_lambdas_raw": student.learned.detach()}


def _features(calibrator: IntervMerge, base: nn.Module, merge: LinearMerge, images: Tensor) -> Tensor:
    """Return the calibrator's features inside the model of its coefficients."""
    merged = copy.deepcopy(base)
    merged.load_state_dict(calibrator.merged_weights(merge))
    return calibrator.correct_features(merged, images, "A")


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
