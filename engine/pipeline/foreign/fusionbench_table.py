"""FusionBench's merge methods beside ours: the names of classes and parameters, and what they always mean.

Facts: the class names, their parameters and defaults in ``fusion_bench_config/method`` and ``fusion_bench/method`` of
FusionBench 0.2.33 (Tang et al., arXiv:2406.03280).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Settings of programs, devices and files: they change where and how fast a method runs, not what it computes.
RUNNING = (
    "_recursive_",
    "cache_dir",
    "checkpoint",
    "dataloader_kwargs",
    "debug",
    "devices",
    "eval_iterations",
    "evaluate_on_every_step",
    "fast_dev_run",
    "mask_checkpoint",
    "merge_dtype",
    "model_save_kwargs",
    "model_save_path",
    "num_workers",
    "return_single_task_models",
    "save_checkpoint",
    "save_interval",
    "save_merging_weights",
    "save_on_every_step",
    "seed",
    "skip_training",
    "strict",
    "tie_weights",
    "use_grad_accumulate",
    "verbose",
)


@dataclass(frozen=True)
class Renamed:
    """A parameter of theirs that is one of ours, times a factor."""

    ours: str
    factor: float = 1.0  # theirs × factor = ours
    default: Any = None  # of theirs, where a file leaves it out


@dataclass(frozen=True)
class Counterpart:
    """A method of theirs beside one of ours."""

    theirs: str  # the class below ``fusion_bench.method``, or the older ``name``
    ours: str
    renamed: Mapping[str, Renamed] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)  # parameters of ours that it always means
    only: Mapping[str, Any] = field(default_factory=dict)  # parameters of theirs that must have this value
    apart: bool = False  # what it makes depends on query, key and value being three tensors, as it has them
    dare: bool = False  # task vectors are dropped at random before
    named: bool = False  # chosen by ``name``, not by ``_target_``


KEYS = {"exclude_keys": None}
SCALED = {"scaling_factor": Renamed("scaling", default=1.0)}
TIES = {
    "scaling_factor": Renamed("scaling", default=0.3),
    "threshold": Renamed("density", 0.01, 20),
    "merge_func": Renamed("merge", default="sum"),
}
LEARNING = {
    "lr": Renamed("learning_rate", default=1e-3),
    "init_values": Renamed("initial", default=0.3),
    "max_steps": Renamed("steps", default=1000),
    "batch_size": Renamed("batch_size", default=16),
}
CONCRETE = {
    "scaling_factor": Renamed("scaling", default=0.3),
    "temperature": Renamed("temperature", default=0.5),
    "max_steps": Renamed("steps", default=2000),
    "batch_size": Renamed("batch_size", default=16),
    "lr": Renamed("learning_rate", default=1e-3),
    "eval_mask_type": Renamed("mask", default="continuous"),
    "clamp_weights": Renamed("clamp", default=False),
}
ADAM = {"weights": None, "optimizer": "adam"}
DARE = {"sparsity_ratio": 0.5, "rescale": True}  # theirs, with defaults

# Methods that both have and that compute something else there, with what differs.
OTHERWISE = {
    "opcm.opcm.OPCMForCLIP": (
        "opcm",
        "it leaves the class embedding at the first expert's, which changes every later step, and shuffles experts",
    ),
    "emr_merging.EMRMerging": (
        "emr",
        "it weighs query, key and value as three tensors in its rescalers; the authors' code, and MergeLens, as one",
    ),
    "tall_mask.TallMaskTaskArithmeticAlgorithm": (
        "tall",
        "its masks compare task vectors with the pretrained weights, not with the other tasks' vectors, and it fails "
        "before it has made any",
    ),
}

COUNTERPARTS = (
    Counterpart("SimpleAverageAlgorithm", "weight_average"),
    Counterpart("TaskArithmeticAlgorithm", "task_arithmetic", {"scaling_factor": Renamed("scaling", default=0.3)}),
    Counterpart("TiesMergingAlgorithm", "ties", TIES, {"scope": "model"}, {"remove_keys": []}),
    Counterpart("DareSimpleAverage", "weight_average", only={"only_on_linear_weights": False}, dare=True),
    Counterpart(
        "DareTaskArithmetic",
        "task_arithmetic",
        {"scaling_factor": Renamed("scaling", default=0.3)},
        only={"only_on_linear_weights": False},
        dare=True,
    ),
    Counterpart(
        "dare.DareTiesMerging",
        "ties",
        TIES,
        {"scope": "model"},
        {"remove_keys": [], "only_on_linear_weights": False},
        dare=True,
    ),
    Counterpart("model_stock.ModelStock", "model_stock", fixed={"average": "angles", "clamp": False}, apart=True),
    Counterpart(
        "SlerpMergeAlgorithm",
        "slerp",
        {"t": Renamed("t", default=0.5)},
        {"on": "weights"},
        {"DOT_THRESHOLD": 0.9995, "epsilon": 1e-8},
        apart=True,
    ),
    Counterpart("ISO_C_Merge", "iso_c", SCALED, only=KEYS, apart=True),
    Counterpart(
        "ISO_CTS_Merge",
        "iso_cts",
        {**SCALED, "common_space_fraction": Renamed("common", default=0.8)},
        only=KEYS,
        apart=True,
    ),
    Counterpart(
        "TaskSingularVectorMerging", "tsv_m", {"alpha": Renamed("scaling", default=1.0)}, only=KEYS, apart=True
    ),
    Counterpart(
        "FisherMergingForCLIPVisionModel",
        "fisher",
        {
            "num_fisher_examples": Renamed("examples", default=256),
            "normalize_fisher_weight": Renamed("normalise", default=True),
            "minimal_fisher_weight": Renamed("smallest", default=1e-6),
        },
        only={"exclude_param_names_regex": []},
    ),
    Counterpart(
        "RegMeanAlgorithmForCLIP",
        "regmean",
        {
            "num_regmean_examples": Renamed("examples", default=256),
            "reduce_non_diagonal_ratio": Renamed("off_diagonal", default=0.95),
        },
        only={"exclude_param_names_regex": [], "weight_transpose": True},
    ),
    Counterpart(
        "WUDIMerging",
        "wudi",
        {"iter_num": Renamed("steps", default=400)},
        {"matrices": "all"},
        only=KEYS,
        apart=True,
    ),
    Counterpart(
        "DOGE_TA_Algorithm",
        "doge",
        {
            "subspace": Renamed("basis_divisor", default=6),
            "K": Renamed("density", 0.01, 30),
            "lamda": Renamed("scaling", default=0.07),
        },
        apart=True,
    ),
    *(
        Counterpart(
            f"clip_{grain}_wise_adamerging",
            "adamerging",
            {**LEARNING, "clamp_weights": Renamed("clamp", default=False)},
            {"granularity": grain},
            ADAM,
            named=True,
        )
        for grain in ("layer", "task")
    ),
    Counterpart(
        "clip_concrete_task_arithmetic",
        "concrete",
        CONCRETE,
        {"coefficients": "fixed"},
        {"initial_logits": 0, "optimizer": "adam"},
        named=True,
    ),
    Counterpart(
        "clip_weight_ensembling_moe",
        "wemoe",
        {
            "init_lambda": Renamed("scaling", default=0.3),
            "router_hidden_layers": Renamed("gate_layers", default=2),
            "max_steps": Renamed("steps", default=1000),
            "batch_size": Renamed("batch_size", default=16),
            "lr": Renamed("learning_rate", default=1e-4),
        },
        {"routing": "batch"},
        {"batch_reduce": True, "optimizer": "adam"},
        named=True,
    ),
)
