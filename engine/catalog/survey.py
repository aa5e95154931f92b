"""Which rows of the catalog stand for each method of the survey's overview of model merging, its Table 2.

Facts of the table are the survey's: Model merging in LLMs, MLLMs, and beyond, Table 2. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SOURCE = "Yang et al., Model merging in LLMs, MLLMs, and beyond, 2024, arXiv:2408.07666, Table 2"
SurveyCategory = Literal[
    "–", "Basic", "Weighted", "Sparse subspace", "Low-rank subspace", "Optimisation", "Calibration", "Routing"
]
Data = Literal["none", "labelled training", "labelled validation", "unlabelled test"]
Size = Literal["= 1×", "= N×", "> 1×", "≫ 1×"]
Level = Literal["–", "Global", "Task", "Layer", "Task or layer", "Parameter", "Sample"]


@dataclass(frozen=True)
class SurveyRow:
    """A method of the table, what the survey says of it, and what stands for it here.

    ``merges``, ``transforms`` and ``calibrators`` name rows of the catalog, the closest one first. ``remark`` says
    what a person should know: where our row is not quite the survey's method, or why there is none.
    """

    method: str
    category: SurveyCategory
    size: Size
    tuning_free: bool
    data: Data
    dynamic: bool
    level: Level
    merges: tuple[str, ...] = ()
    transforms: tuple[str, ...] = ()
    calibrators: tuple[str, ...] = ()
    state: str = ""  # the state of a run that shows this baseline, where nothing is merged
    remark: str = ""

    @property
    def covered(self) -> bool:
        """Whether some row of the catalog stands for it."""
        return bool(self.merges or self.transforms or self.calibrators)


def _static(
    method: str, category: SurveyCategory, tuning_free: bool, data: Data, level: Level, *merges: str, remark: str = ""
) -> SurveyRow:
    return SurveyRow(method, category, "= 1×", tuning_free, data, False, level, merges, remark=remark)


TABLE: tuple[SurveyRow, ...] = (
    SurveyRow(
        "Traditional MTL",
        "–",
        "= 1×",
        False,
        "labelled training",
        False,
        "–",
        state="multitask",
        remark="Trains one model on all tasks together and merges no weights; a zoo may bring such a model, which is "
        "shown as the state 'multitask'.",
    ),
    SurveyRow(
        "Individual Models",
        "–",
        "= N×",
        False,
        "labelled training",
        False,
        "–",
        state="expert",
        remark="The experts themselves; nothing is merged. Every run shows them as the state 'expert'.",
    ),
    _static("Weighted Average", "Basic", True, "none", "Global", "weight_average"),
    _static("Task Arithmetic", "Basic", True, "none", "Global", "task_arithmetic"),
    _static(
        "SLERP",
        "Weighted",
        True,
        "none",
        "Task",
        "slerp",
        "multislerp",
        "karcher",
        remark="SLERP takes two experts; MultiSLERP and the Karcher mean take more.",
    ),
    _static(
        "Evolutionary-model-merge",
        "Weighted",
        True,
        "labelled validation",
        "Layer",
        "evolutionary",
        remark="Coefficients are searched; reordering layers does not apply to experts of one base.",
    ),
    _static("AdaMerging", "Weighted", False, "unlabelled test", "Task or layer", "adamerging"),
    _static("MetaGPT", "Weighted", True, "none", "Task", "metagpt"),
    _static(
        "Fisher-Merging",
        "Weighted",
        False,
        "labelled validation",
        "Parameter",
        "fisher",
        remark="The expected Fisher information needs no labels, so unlabelled images are enough.",
    ),
    _static(
        "RegMean",
        "Weighted",
        False,
        "labelled validation",
        "Parameter",
        "regmean",
        remark="Only inputs of layers count, so unlabelled images are enough.",
    ),
    _static("Ties-Merging", "Sparse subspace", True, "none", "Global", "ties"),
    SurveyRow(
        "DARE",
        "Sparse subspace",
        "= 1×",
        True,
        "none",
        False,
        "Global",
        transforms=("dare",),
        remark="A transform in front of any merge method, as in the paper.",
    ),
    _static("Model Breadcrumbs", "Sparse subspace", True, "none", "Global", "breadcrumbs"),
    _static(
        "Model Tailor",
        "Sparse subspace",
        False,
        "labelled training",
        "Global",
        "model_tailor",
        remark="Only inputs of layers count, so unlabelled images are enough.",
    ),
    _static(
        "Localize-and-Stitch",
        "Sparse subspace",
        True,
        "labelled validation",
        "Global",
        "localize_and_stitch_learned",
        "localize_and_stitch",
        remark="With masks learned on labelled images, and the authors' variant without data.",
    ),
    _static(
        "Consensus Merging",
        "Sparse subspace",
        True,
        "none",
        "Task",
        "consensus",
        "tall",
        remark="TALL-masks is the variant with a mask for each task.",
    ),
    _static("DELLA-Merging", "Sparse subspace", False, "none", "Global", "della"),
    _static("PCB-Merging", "Sparse subspace", True, "none", "Task", "pcb"),
    _static("KnOTS", "Low-rank subspace", True, "none", "Global", "knots"),
    _static(
        "HO-GSVD",
        "Low-rank subspace",
        True,
        "none",
        "Global",
        "subspace_boosting",
        remark="The cited paper merges by Subspace Boosting and uses HO-GSVD to compare experts; so do we, as our "
        "reading of it.",
    ),
    _static("TSV-M", "Low-rank subspace", True, "none", "Global", "tsv_m"),
    _static("ISO-Merging", "Low-rank subspace", True, "none", "Global", "iso_c", "iso_cts"),
    _static("OPCM", "Low-rank subspace", True, "none", "Task", "opcm"),
    _static(
        "AWD",
        "Optimisation",
        False,
        "none",
        "Task",
        "awd",
        remark="A reconstruction from the paper's objective: the authors have published no code.",
    ),
    _static(
        "DOGE",
        "Optimisation",
        False,
        "none",
        "Task",
        "doge",
        "doge_am",
        remark="On task arithmetic, and with coefficients learned as in AdaMerging.",
    ),
    _static(
        "WUDI-Merging",
        "Optimisation",
        False,
        "none",
        "Global",
        "wudi",
        "closed_form",
        remark="The closed form solves the same objective with a ridge.",
    ),
    _static("DOP", "Optimisation", False, "none", "Task", "dop"),
    SurveyRow(
        "Surgery",
        "Calibration",
        "> 1×",
        False,
        "unlabelled test",
        False,
        "Global",
        calibrators=("surgery", "surgery_v2"),
        remark="A calibrator behind any merge; it adds a module and leaves the merged weights alone.",
    ),
    SurveyRow(
        "ProbSurgery",
        "Calibration",
        "> 1×",
        False,
        "unlabelled test",
        False,
        "Global",
        calibrators=("prob_surgery",),
        remark="A calibrator behind any merge; it adds a module and leaves the merged weights alone.",
    ),
    SurveyRow("EMR Merging", "Routing", "> 1×", True, "none", True, "Task", ("emr",)),
    SurveyRow(
        "Twin Merging",
        "Routing",
        "> 1×",
        False,
        "labelled validation",
        True,
        "Sample",
        ("twin",),
        remark="The router learns which task an image is of, for which the task of unlabelled images is label enough.",
    ),
    SurveyRow("WEMoE", "Routing", "≫ 1×", False, "unlabelled test", True, "Sample", ("wemoe",)),
)


def methods_beyond(merges: tuple[str, ...]) -> tuple[str, ...]:
    """Which of these merge methods the table does not list, in their order."""
    listed = {name for row in TABLE for name in row.merges}
    return tuple(name for name in merges if name not in listed)
