"""Receipt: what came from which expert, tensor by tensor; the same document that lies beside exported weights."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ...recipe import MethodCall
from ..steps import step
from ..viewing.base import View, ViewRequest
from ..viewing.on_weights import MergeInput, ModelsParams, kind_of, merge_only
from ..viewing.opening import at_once
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from ..run.plan import RunSteps
    from ..tools import StepTools


class ReceiptRequest(ViewRequest):
    """Request for the receipt of a recipe's merge."""

    REFUSAL = "The receipt cannot be made"


class ReceiptParams(ModelsParams):
    """Parameters of the step that makes a receipt: all that stands in it."""

    weights: tuple[float, ...]  # of the experts
    transforms: tuple[MethodCall, ...]
    merge: MethodCall
    seed: int
    origins: tuple[dict[str, str], ...]


def plan(run: RunSteps, asked: ReceiptRequest) -> str:
    """Plan the merge and the step that tells its parts."""
    from ..run.receipt import origins_of

    shared, recipe = ModelsParams.of(run), run.recipe
    params = ReceiptParams(
        **{name: getattr(shared, name) for name in type(shared).model_fields},
        weights=tuple(weight for _, weight in run.experts),
        transforms=recipe.transforms,
        merge=recipe.merge,
        seed=recipe.seeds[0],
        origins=tuple(asdict(origin) for origin in origins_of(run.zoo, recipe, run.store.digest_file)),
    )
    return run.make(receipt, params, MergeInput[str](run.merge(run.recipe.seeds[0])))


@step("merge_receipt", label="Telling what came from whom", params=ReceiptParams, inputs=MergeInput, cost=3.0)
def receipt(inputs: MergeInput[Path], params: ReceiptParams, output: Path, tools: StepTools) -> None:
    """Measure every expert's part in every merged tensor; writes ``receipt.json``."""
    from ...weights import encoder_part, open_weights
    from ..run.receipt import Made, Origin, receipt_text

    static = kind_of(inputs.merge) == "static"
    merged = encoder_part(open_weights(inputs.merge / "merged.safetensors")) if static else None
    base, experts = params.models()
    origins = [Origin(**origin) for origin in params.origins]
    weights = dict(zip(params.experts, params.weights, strict=True))
    made = Made(base, experts, weights, params.transforms, params.merge, params.seed, origins)
    (output / "receipt.json").write_text(receipt_text(made, merged, tools.progress), "utf-8")


def work(asked: ReceiptRequest, sizes: Sizes) -> Work:
    """Return what reading all models twice takes."""
    return Work(models=2 * (sizes.experts + 1))


RECEIPT = View(
    "receipt", "Merge receipt", ReceiptRequest, plan, reduced=merge_only, work=work, needs="merge", opens=at_once
)
