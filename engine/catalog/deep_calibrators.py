"""Calibrators inside the encoder: small modules that change a merged model's activations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ..errors import CalibrationError
from ..recipe import LATER
from .calibrators import ADAM_SEMANTICS, AdamSemantics, Shapes, Sizes, TrainingParams
from .row import PARITY, CalibratorRow, OnlyWith, Preset

InterventionFunction = Literal["noreft", "loreft", "direft", "consreft", "lobireft", "nodireft"]
Position = Literal["class", "first", "middle", "last", "patches", "all"]
MiniPlacement = Literal["none", "start", "shifted", "four"]
Coefficients = Literal["frozen", "task", "layer"]
TENSORS = {  # of each function of IntervMerge
    "lobireft": ("rotation", "bias"),
    "consreft": ("rotation", "bias"),
    "direft": ("rotation", "source", "bias"),
    "loreft": ("rotation", "source", "bias"),
    "noreft": ("source", "bias", "target", "target_bias"),
    "nodireft": ("source", "bias", "target"),
}


class DeepParams(TrainingParams):
    """Parameters of every calibrator inside the encoder."""

    adam_semantics: Annotated[AdamSemantics, LATER] = Field(
        "indep", title="Adam state", description=ADAM_SEMANTICS, json_schema_extra=PARITY
    )


class SurgeryV2Params(DeepParams):
    """Parameters of SurgeryV2."""

    steps: int = Field(500, ge=1, le=100_000, title="Training steps", description="Adam updates for each task.")
    loss: Literal["l1", "mse"] = Field(
        "l1", title="Distance", description="Mean over images and dimensions, summed over the blocks and the output."
    )
    rank: int = Field(16, ge=1, le=1024, title="Rank", description="Width of every block's hidden layer.")
    statistic: Literal["mean", "class"] = Field(
        "mean", title="Aligned token", description="mean: the average of all tokens of a block. class: its class token."
    )

    def shapes(self, sizes: Sizes) -> Shapes:
        """Return ``down`` (blocks, r, W), ``up`` (blocks, W, r), ``down_output`` (r, d), ``up_output`` (d, r)."""
        width, dim, blocks = sizes["width"], sizes["dim"], sizes["blocks"]
        return {
            "down": (blocks, self.rank, width),
            "up": (blocks, width, self.rank),
            "down_output": (self.rank, dim),
            "up_output": (dim, self.rank),
        }


class SurgeryJointParams(DeepParams):
    """Parameters of Surgery with learned merging coefficients."""

    steps: int = Field(500, ge=1, le=100_000, title="Training steps", description="Adam updates for each task.")
    rank: int = Field(16, ge=1, le=1024, title="Rank", description="Width of the module's hidden layer.")
    coefficients: Coefficients = Field(
        "task",
        title="Merging coefficients λ",
        description="task, layer: one λ per expert, or per expert and layer, learns with the modules; after Weight "
        "Averaging, Task Arithmetic or AdaMerging without transforms. frozen: the merge stays as it is, as in Surgery.",
    )

    def shapes(self, sizes: Sizes) -> Shapes:
        """Return ``down`` (rank, dim) and ``up`` (dim, rank)."""
        return {"down": (self.rank, sizes["dim"]), "up": (sizes["dim"], self.rank)}


class IntervMergeParams(DeepParams):
    """Parameters of IntervMerge."""

    steps: int = Field(500, ge=1, le=100_000, title="Training steps", description="Adam updates for each task.")
    rank: int = Field(1, ge=1, le=256, title="Rank", description="Directions that an intervention can change.")
    function: InterventionFunction = Field(
        "noreft", title="Intervention", description="Row of the paper's Table 7; NoReFT is its default."
    )
    positions: Position = Field(
        "class", title="Tokens", description="Which tokens of a block are changed; each has its own module."
    )
    blocks: Literal["all", "every_second", "every_third", "every_fourth"] | tuple[int, ...] = Field(
        "all", title="Blocks", description="Which residual blocks are changed: numbers count from 0, in figures from 1."
    )
    mini: MiniPlacement = Field(
        "none",
        title="Mini-intervention",
        description="Change only some dimensions: at the start, shifted from block to block, or four short slices. "
        "The published program knows them for NoReFT and LobiReFT; here all functions have them.",
    )
    mini_dims: Annotated[int, OnlyWith(mini=("start", "shifted", "four"))] = Field(
        64, ge=1, le=8192, title="Dimensions of a mini-intervention", description="Dimensions changed in a token."
    )
    mini_start: Annotated[int, LATER] = Field(
        0,
        ge=0,
        le=8191,
        title="First dimension of a mini-intervention",
        description="Where the changed dimensions begin; only with mini start.",
    )
    coefficients: Annotated[Coefficients, LATER] = Field(
        "frozen",
        title="Merging coefficients λ",
        description="frozen: the merge stays as it is. task, layer: one λ per expert, or per expert and layer, learns "
        "with the interventions; after Weight Averaging, Task Arithmetic or AdaMerging without transforms.",
    )
    registration: Annotated[Literal["once", "triple"], LATER] = Field(
        "once",
        title="Updates per step",
        description="triple: every module is updated three times with each gradient, as in the published program, "
        "which registers it three times; only to reproduce its numbers.",
        json_schema_extra=PARITY,
    )
    trained_tokens: Annotated[Literal["all", "first"], LATER] = Field(
        "all",
        title="Trained tokens",
        description="first: of several tokens only the first one's modules are trained and the others stay random, as "
        "in the published program for patch tokens; only to reproduce its numbers.",
        json_schema_extra=PARITY,
    )

    def shapes(self, sizes: Sizes) -> Shapes:
        """Return Table 7's tensors: matrices (blocks, tokens, slices, r, k), biases (blocks, tokens, slices, r).

        Raises:
            CalibrationError: the encoder has no such blocks or dimensions, or the change would have no effect.
        """
        blocks, tokens = self.block_numbers(sizes["blocks"]), self.token_numbers(sizes["tokens"])
        starts, length = self.segment_starts(blocks[-1], sizes["width"])
        if blocks == (sizes["blocks"] - 1,) and 0 not in tokens:
            raise CalibrationError(
                f"Changing only {self.positions} tokens in the last block has no effect: after it only the "
                "class token is read. Choose an earlier block or the class token."
            )
        if self.rank > length:
            raise CalibrationError(f"A rank of {self.rank} is more than the {length} dimensions that change.")
        lead = (len(blocks), len(tokens), len(starts), self.rank)
        return {name: lead if name.endswith("bias") else (*lead, length) for name in TENSORS[self.function]}

    def block_numbers(self, blocks: int) -> tuple[int, ...]:
        """Return the blocks that are changed, ascending.

        Raises:
            CalibrationError: a number that the encoder does not have, or no block at all.

        Source: IntervMerge, Table 3.
        """
        strides = {"all": 1, "every_second": 2, "every_third": 3, "every_fourth": 4}
        if isinstance(self.blocks, str):
            return tuple(range(0, blocks, strides[self.blocks]))
        wrong = [number for number in self.blocks if not 0 <= number < blocks]
        if wrong or not self.blocks:
            raise CalibrationError(
                f"Blocks {list(self.blocks)} were asked for; the encoder has blocks 0 to {blocks - 1}."
            )
        return tuple(sorted(set(self.blocks)))

    def token_numbers(self, tokens: int) -> tuple[int, ...]:
        """Return the tokens that are changed; 0 is the class token, the rest are patches in reading order.

        Source: IntervMerge, Table 2. Departure: "middle" is not defined there; it is patch 25 of 49 in the code.

        Raises:
            CalibrationError: the encoder has no such tokens, as one of texts, which differ in length.
        """
        if tokens == 1 and self.positions != "class":
            raise CalibrationError(
                f"Tokens '{self.positions}' were asked for; samples of this encoder differ in length, so only the "
                "class token has a place of its own. Choose `positions: class`."
            )
        return {
            "class": (0,),
            "first": (1,),
            "middle": (1 + (tokens - 1) // 2,),
            "last": (tokens - 1,),
            "patches": tuple(range(1, tokens)),
            "all": tuple(range(tokens)),
        }[self.positions]

    def segment_starts(self, block: int, width: int) -> tuple[tuple[int, ...], int]:
        """Return the first dimensions of the slices that are changed in a block's tokens, and their length k.

        Raises:
            CalibrationError: a slice would leave the token, or overlap another.

        Source: IntervMerge, §3.5 and Table 4. Departure: the code fixes the width at 768; here places are derived from
        it (shifted: [b·m, (b+1)·m) in block b; four: at the start, the end and around the quarters).
        """
        if self.mini == "none":
            return (0,), width
        length = self.mini_dims // 4 if self.mini == "four" else self.mini_dims
        starts = {
            "start": (self.mini_start,),
            "shifted": (block * length,),
            "four": _four(width, length),
        }[self.mini]
        if min(starts) < 0 or max(starts) + length > width:
            raise CalibrationError(
                f"A mini-intervention of {self.mini_dims} dimensions ({self.mini}) in block {block} leaves the token, "
                f"which is {width} wide. Use fewer dimensions."
            )
        if self.mini == "four" and _overlap(starts, length):
            most = next((less for less in range(length - 1, 0, -1) if not _overlap(_four(width, less), less)), 0)
            raise CalibrationError(
                f"Four slices of {self.mini_dims} dimensions together overlap in a token that is {width} wide. Use at "
                f"most {4 * most}."
            )
        return starts, length

    @model_validator(mode="after")
    def _mini_fits(self) -> IntervMergeParams:
        if self.mini == "four" and self.mini_dims % 4:
            raise ValueError(f"four slices need mini_dims to be a multiple of 4, found {self.mini_dims}")
        if self.mini_start and self.mini != "start":
            raise ValueError(f"mini_start is for mini-interventions of placement start, not {self.mini}")
        return self


def _four(width: int, length: int) -> tuple[int, ...]:
    return 0, width - length, width // 4 - length // 2, 3 * width // 4 - length // 2


def _overlap(starts: Sequence[int], length: int) -> bool:
    return any(after - before < length for before, after in pairwise(sorted(starts)))


ROWS = (
    CalibratorRow(
        name="surgery_v2",
        title="SurgeryV2",
        category="deep",
        params=SurgeryV2Params,
        function=".calibration.surgery_v2:SurgeryV2",
        summary="Surgery on all tokens after every residual block, and on the output.",
        equation=r"X_l \leftarrow X_l - U_l\,\mathrm{ReLU}(D_l X_l)",
        source="Yang et al., SurgeryV2: Deep Representation Surgery, 2024, arXiv:2410.14389",
        url="https://arxiv.org/abs/2410.14389",
        presets=(Preset("paper", "ViT-B", {"rank": 16, "steps": 1000}, "official code: two updates an iteration"),),
        deep=True,
        quick={"rank": 2},
        variants=({"statistic": "class"},),
        survey_with="surgery",
    ),
    CalibratorRow(
        name="surgery_joint",
        title="Surgery, λ learned",
        category="deep",
        params=SurgeryJointParams,
        function=".calibration.surgery_joint:SurgeryJoint",
        summary="Surgery on a merge whose coefficients learn along: a control for calibrators that learn them.",
        equation=r"\hat z = z - U_t\,\mathrm{ReLU}(D_t z),\quad "
        r"z = f(x;\ \theta_0 + \textstyle\sum_k \lambda_k \tau_k)",
        source="Osial et al., Parameter-Efficient Interventions for Enhanced Model Merging, 2024, arXiv:2412.17023, "
        "Table 6",
        url="https://arxiv.org/abs/2412.17023",
        deep=True,
        learns_coefficients=True,
        quick={"rank": 8, "coefficients": "frozen"},
        survey_with="surgery",
    ),
    CalibratorRow(
        name="interv_merge",
        title="IntervMerge",
        category="deep",
        params=IntervMergeParams,
        function=".calibration.interv_merge:IntervMerge",
        summary="Low-rank changes of the class token inside the merged encoder's blocks.",
        equation=r"v \leftarrow v + W_2^\top(W_1 v + b_1 - W_2 v - b_2)",
        source="Osial et al., Parameter-Efficient Interventions for Enhanced Model Merging, 2024, arXiv:2412.17023",
        url="https://arxiv.org/abs/2412.17023",
        presets=(
            Preset(
                "paper", "All blocks, rank 1", {"rank": 1, "steps": 1000}, "official code: two updates an iteration"
            ),
            Preset("rank_4", "All blocks, rank 4", {"rank": 4, "steps": 1000}, "IntervMerge, Table 1"),
            Preset(
                "mini",
                "64 shifting dimensions, bias only",
                {"rank": 1, "function": "lobireft", "mini": "shifted", "mini_dims": 64},
                "IntervMerge, Table 4",
            ),
        ),
        deep=True,
        learns_coefficients=True,
        quick={"rank": 2},
        variants=(
            {"function": "loreft", "positions": "all"},
            {"function": "lobireft", "mini": "shifted", "mini_dims": 4, "blocks": (1, 2)},
            {"mini": "four", "mini_dims": 8, "positions": "middle", "blocks": (1,)},
        ),
    ),
)
