"""Merges in memory: models put together from a zoo that a worker holds, and images of several tasks encoded at once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from ...catalog import MERGE_METHODS, TRANSFORMS, params_of
from ...errors import EngineError
from ...features import Batches, choose_device, encode
from ...features.linearised import Linearised
from ...merging.apply import merge as merge_experts
from ...types import Merged, PerTask, Static
from ...weights import LazyTaskVectors
from ...zoo.encoders.backbone import build_encoder, filled, forward_with, load_encoder
from ..run.encoding import FeaturesParams
from ..run.merging import MergeParams
from .resident import Resident, context_of

if TYPE_CHECKING:
    from ..run.bundle import SeedInputs
    from ..run.plan import RunSteps
    from ..tools import StepTools

TOGETHER = 256  # samples, about, that are encoded at a time: of several tasks, where each has few


class Side(BaseModel):
    """A merge, and what a run of it would encode."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: dict[str, dict[str, str]]  # state → task → key of the features
    merge: MergeParams
    encoded: dict[str, dict[str, FeaturesParams]]  # state → task


def side_of(run: RunSteps, made: SeedInputs[str]) -> Side:
    """Return a run's merge and what is encoded with it, as the steps of one of its seeds would."""
    encoded = {
        state: {task: run.steps[key].params for task, key in tasks.items()}
        for state, tasks in made.features.items()
        if state in ("pretrained", "merged")
    }
    return Side(
        keys={state: dict(made.features[state]) for state in encoded},
        merge=run.steps[made.merge].params,
        encoded=encoded,
    )


def contents_of(sides: Iterable[Side], heads: str | None = None) -> dict[str, str]:
    """Return the contents of all that merges read of a zoo, so that one in memory is told from one that has changed.

    Args:
        sides: the merges.
        heads: digest of the heads, where something is scored.

    Returns:
        Name → digest, or what is read itself where it is small: weights, factors, images by task, heads, architecture,
        preparation.
    """
    found: dict[str, str | None] = {"heads": heads}
    for side in sides:
        read = side.merge
        found |= {f"weights/{name}": digest for name, digest in read.digests.items()}
        found |= {f"factors/{name}": json.dumps(factors) for name, factors in (read.factors or {}).items()}
        found |= {f"data/{task}": digest for task, digest in (read.data or {}).items()}
        found |= {} if read.heads is None else {"heads": read.heads}
        for one in (one for tasks in side.encoded.values() for one in tasks.values()):
            found[f"data/{one.task}"] = one.data
            found["architecture"] = json.dumps(one.architecture, sort_keys=True)
            found["preparation"] = one.preprocess.model_dump_json()
    return {name: content for name, content in found.items() if content is not None}


class Models:
    """The models of a side, put together when something is encoded with them; the merge once."""

    def __init__(self, resident: Resident, side: Side, tools: StepTools) -> None:
        """Build nothing yet.

        Args:
            resident: the zoo in memory.
            side: the merge.
            tools: of the step.
        """
        self._resident, self._side, self.tools = resident, side, tools
        self._built: tuple[tuple[str, str | None], nn.Module] | None = None
        self._merged: Merged | None = None

    def encoder(self, params: FeaturesParams) -> nn.Module:
        """Return the encoder that some features are asked of."""
        name = (params.model, params.weights_of)
        if self._built is None or self._built[0] != name:
            self._built = (name, self._build(params))
        return self._built[1]

    def _build(self, params: FeaturesParams) -> nn.Module:
        config, base = params.architecture, self._resident.weights("base")
        if params.model == "merged":
            encoder = self._merged_encoder(config, params.weights_of)
        else:
            encoder = filled(self._resident.encoder(config), config, self._resident.weights(params.model))
        if params.around is None:
            return encoder
        return Linearised(encoder, dict(load_encoder(config, base).named_parameters())).eval()

    def _merged_encoder(self, config: Mapping[str, Any], task: str | None) -> nn.Module:
        base = self._resident.weights("base")
        self._merged = merged = self._merged or self._merge()
        if isinstance(merged, Static):
            return filled(self._resident.encoder(config), config, merged.weights)
        if isinstance(merged, PerTask):
            return filled(self._resident.encoder(config), config, merged.rebuild(base, merged.parts, str(task)))
        return merged.rebuild(base, merged.parts, partial(forward_with, build_encoder(config)))

    def _merge(self) -> Merged:
        """Merge; where nothing but λ is new since the last merge, from the vector that was kept of it."""
        params = self._side.merge
        row = MERGE_METHODS[params.merge.method]
        after = any(TRANSFORMS[call.method].stage == "merged_vector" for call in params.transforms)
        if not row.proportional or after:
            return self._merge_as(params)
        scaling = params_of(row, params.merge.params).scaling
        given = {**params.merge.params, "scaling": 1.0}
        whole = params.model_copy(update={"merge": params.merge.model_copy(update={"params": given})})

        def vector() -> dict[str, Tensor]:
            added = self._merge_as(whole).weights
            return {name: added.vector(name).to(added.compute_dtype) for name in added.layers}

        weights = self._resident.scaled(whole.model_dump_json(exclude={"sources"}), scaling, vector)
        return self._merge_as(params) if weights is None else Static(weights)

    def _merge_as(self, params: MergeParams) -> Merged:
        zoo = self._resident.zoo
        names = [name for name, _ in params.experts]
        base = self._resident.weights("base")
        experts = {name: self._resident.weights(name) for name in names}
        tasks = tuple(zoo.manifest.expert_table[name].task for name in names)
        digests, probe = params.digests, params.probe or next(iter(self._side.encoded["merged"].values())).probe
        context = context_of(self._resident, tasks, digests, probe, params.seed, self.tools, dict(params.experts))
        vectors = LazyTaskVectors(base, experts, weights=[weight for _, weight in params.experts])
        return merge_experts(base, vectors, params.transforms, params.merge, context)


def encode_together(
    models: Models, wanted: Sequence[FeaturesParams], samples: Iterable[np.ndarray], sizes: Batches
) -> list[np.ndarray]:
    """Return the features (n, dim) of samples of some tasks; those that go through one encoder go together.

    Args:
        models: of the merge that encodes.
        wanted: of which task and by which model.
        samples: beside them.
        sizes: of batches.

    Raises:
        EngineError: features that are not finite.
        Cancelled: nobody wants them any more.
    """
    parts = list(samples)
    found: list[np.ndarray] = [np.empty(0)] * len(parts)
    device = choose_device(models.tools.device)
    for places in _groups(wanted, parts):
        models.tools.check()
        one, pixels = wanted[places[0]], np.concatenate([parts[place] for place in places])
        features = encode(
            models.encoder(one), pixels, one.preprocess, device, lambda *_: models.tools.check(), sizes
        ).numpy()
        if not np.isfinite(features).all():
            raise EngineError("The merged model's features are not finite. Choose a smaller scaling coefficient.")
        ends = np.cumsum([len(parts[place]) for place in places])[:-1]
        for place, own in zip(places, np.split(features, ends), strict=True):
            found[place] = own
    return found


def _groups(wanted: Sequence[FeaturesParams], parts: Sequence[np.ndarray]) -> list[list[int]]:
    """Return positions of samples that go through the same encoder, about as many samples at a time as are encoded."""
    groups: dict[tuple[Any, ...], list[list[int]]] = {}
    for place, (one, rows) in enumerate(zip(wanted, parts, strict=True)):
        own = groups.setdefault((one.model, one.weights_of, one.around, rows.shape[1:], rows.dtype), [[]])
        if sum(len(parts[other]) for other in own[-1]) >= TOGETHER:
            own.append([])
        own[-1].append(place)
    return [places for own in groups.values() for places in own]
