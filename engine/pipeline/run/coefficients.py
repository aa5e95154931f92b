"""Merging coefficients that learn together with a calibrator inside the encoder: from a recipe to weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...calibration.coefficients import LinearMerge
from ...catalog import CALIBRATORS, MERGE_METHODS, MergeRow, params_of
from ...merging.ties import elected
from ...recipe import CalibratorCall, Frozen, MethodCall, Probe
from ...weights import LazyTaskVectors, open_weights, write_weights
from ...weights.files import Memory
from ...zoo.encoders.backbone import architecture, load_encoder, prefix_of
from ...zoo.folder import Zoo
from ...zoo.metadata import METADATA_KEY, describe_model
from .context import MergeContext
from .encoding import encoder_of

if TYPE_CHECKING:
    from ...calibration import JointCalibrator
    from ..tools import StepTools

WEIGHTS = "merged.safetensors"  # beside a calibrator that acts in a merged model of its own


class JointMerge(Frozen):
    """A merge whose coefficients learn together with a calibrator."""

    experts: tuple[tuple[str, float], ...]  # names with their weights
    digests: dict[str, str]  # of the weights, by the expert's name and ``base``
    merge: MethodCall


def learns_coefficients(call: CalibratorCall) -> bool:
    """Tell whether a calibrator moves the merging coefficients as well."""
    return CALIBRATORS[call.method].learned(call.params)


def linear_merge(zoo: Zoo, joint: JointMerge, folder: Path, seed: int, tools: StepTools) -> LinearMerge:
    """Take a merge apart into base, task vectors and coefficients.

    Args:
        zoo: gives the weights.
        joint: the merge and its experts.
        folder: what the merge step wrote.
        seed: of the step.
        tools: cache and progress.
    """
    experts = {name: zoo.weights(name) for name, _ in joint.experts}
    weights = [weight for _, weight in joint.experts]
    base = zoo.weights("base")
    vectors = LazyTaskVectors(base, experts, weights=weights)
    method = joint.merge.method
    params = params_of(MERGE_METHODS[method], joint.merge.params)
    stacks: Any = vectors
    if getattr(params, "plus_plus", False):
        tasks = tuple(zoo.manifest.expert_table[name].task for name in experts)
        context = MergeContext(zoo, tasks, joint.digests, Probe(), seed, tools, dict(joint.experts))
        stacks = elected(vectors, params.density, context)
    prefix = prefix_of(architecture(zoo.folder, zoo.manifest))
    details = json.loads((folder / "merged.json").read_text())["details"]
    return LinearMerge(
        {name.removeprefix(prefix): base.tensor(name).float() for name in base.names},
        {name.removeprefix(prefix): stacks.stack(name).clone() for name in vectors.names},
        _start(MERGE_METHODS[method], params, details, tuple(experts)),
        tuple(experts),
    )


def _start(row: MergeRow, params: Any, details: Mapping[str, Any], experts: tuple[str, ...]) -> Tensor:
    """Return the coefficients (L, K) or (1, K) that the merge itself used: those it learned, or those of its row."""
    if row.learned(params):
        columns = [details["coefficients"][name] for name in experts]
        return torch.tensor([column if isinstance(column, list) else [column] for column in columns]).T.float()
    return torch.full((1, len(experts)), row.linear(params, len(experts)))


def save_learned(
    calibrator: JointCalibrator, merge: LinearMerge, zoo: Zoo, output: Path, tools: StepTools
) -> nn.Module:
    """Write the merged model of the learned coefficients and give its encoder; clamps them as the model does."""
    with torch.no_grad():
        calibrator.coefficients.clamp_(0, 1)
    config = architecture(zoo.folder, zoo.manifest)
    prefix = prefix_of(config)
    weights = Memory({prefix + name: tensor.cpu() for name, tensor in calibrator.merged_weights(merge).items()})
    metadata = {METADATA_KEY: json.dumps({**describe_model(zoo), "method": calibrator.method}, sort_keys=True)}
    write_weights(output / WEIGHTS, weights, None, tools.progress, metadata)
    return load_encoder(config, weights)


def encoder_around(zoo: Zoo, calibrator: Path, state: str, merged: Path | None) -> nn.Module:
    """Return the encoder that a deep calibrator acts in: its own where it learned coefficients, else that of ``state``.

    Args:
        zoo: gives architecture and weights.
        calibrator: what the calibrate step wrote.
        state: ``merged`` or ``pretrained``.
        merged: what the merge step wrote.
    """
    own = own_encoder(zoo, calibrator)
    return encoder_of(zoo, state, merged) if own is None else own


def own_encoder(zoo: Zoo, calibrator: Path) -> nn.Module | None:
    """Return the encoder of the merged model beside a calibrator that learned coefficients, else None."""
    weights = calibrator / WEIGHTS
    if not weights.is_file():
        return None
    return load_encoder(architecture(zoo.folder, zoo.manifest), open_weights(weights))


def coefficients_of(calibrator: JointCalibrator, merge: LinearMerge, prefix: str) -> dict[str, Any]:
    """Return the learned coefficients as JSON: by expert, a number or one a layer."""
    rows = calibrator.coefficients.detach().cpu()
    return {
        "layers": [prefix + name for name in merge.layers] if len(rows) > 1 else [],
        "coefficients": {
            name: column.tolist() if len(rows) > 1 else column[0].item()
            for name, column in zip(merge.experts, rows.T, strict=True)
        },
    }
