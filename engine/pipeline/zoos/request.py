"""Requests to train experts: recipe, settings, tasks, teacher. Free of torch, so that forms can check them."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, model_validator

from ...catalog import FINE_TUNING, FineTuningRow, params_of, row_of
from ...catalog.fine_tuning import Augmentation
from ...errors import RecipeError
from ...manifest import SAFE_NAME
from ...recipe import Frozen, Request
from ...zoo.making.adopt import way_of

SMALL_ENCODER = 20_000_000  # parameters
STEPS = 250  # of one expert
LEARNING_RATES = {"small": 5e-4, "large": 1e-5}  # from the bundled zoo's builder; from Task Arithmetic, Appendix B


class Teacher(Frozen):
    """A model that teaches, and how much its predictions count."""

    zoo: str = Field(title="Zoo", description="The teacher's zoo; its architecture may be another.")
    model: str = Field(title="Model", description="One of its experts, `base` or `multitask`.")
    task: str = Field("", title="Task", description="Of the teacher's head; by default of the same name.")
    temperature: float = Field(2.0, ge=0.1, le=100, title="Temperature T", description="Softens both predictions.")
    weight: float = Field(
        0.9, ge=0, le=1, title="Weight", description="Of the teacher's predictions; the rest is the labels'. 0: labels."
    )


class Start(Frozen):
    """Another zoo of the same architecture, whose base experts start from."""

    zoo: str = Field(title="Zoo", description="Its base has other weights in the same architecture.")


class FinetuneConfig(Frozen):
    """Settings of fine-tuning; what is not given is chosen when the plan is made, and written out in the record."""

    steps: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        title="Steps",
        description="Batches to train on (default 250; of joint training 250 for each task).",
    )
    epochs: float | None = Field(
        None, gt=0, le=10_000, title="Epochs", description="In place of steps: passes over the training samples."
    )
    batch_size: int = Field(64, ge=1, le=8192, title="Batch size", description="Samples in a step.")
    learning_rate: float | None = Field(
        None,
        gt=0,
        le=1,
        title="Learning rate",
        description="Highest rate; default 5e-4 for encoders below 20 million parameters, else 1e-5.",
    )
    warmup: int | None = Field(
        None, ge=0, title="Warm-up", description="Steps of linear warm-up before the cosine (default a tenth)."
    )
    weight_decay: float = Field(0.0, ge=0, le=10, title="Weight decay", description="AdamW's decoupled decay.")
    label_smoothing: float = Field(0.0, ge=0, lt=1, title="Label smoothing", description="Share spread over classes.")
    augmentation: Augmentation | None = Field(
        None, title="Augmentation", description="How training samples are varied (default: images shifted, texts not)."
    )
    seed: int = Field(0, ge=0, title="Seed", description="Orders the batches and draws the augmentations.")
    dtype: Literal["float32", "float16"] = Field("float32", title="Stored as", description="Of the expert's file.")
    method: str = Field("standard", title="Recipe", description="A row of the catalogue's table of fine-tuning.")
    params: dict[str, Any] = Field(default_factory=dict, title="Parameters", description="Of the recipe.")
    decay: Literal["whole", "after_warmup"] = Field(
        "whole", title="Cosine", description="Over all steps, or over those after the warm-up (published programs)."
    )

    part: int | None = Field(
        None, ge=0, title="Parts at step", description="From this step on the seed `after` orders and varies batches."
    )
    after: int = Field(0, ge=0, title="Seed afterwards", description="Of the part of a training that runs apart.")

    @property
    def row(self) -> FineTuningRow:
        """Return the recipe's row."""
        return row_of(FINE_TUNING, self.method, "recipe of fine-tuning")

    @model_validator(mode="after")
    def _known_recipe(self) -> FinetuneConfig:
        try:
            params_of(self.row, self.params)
        except RecipeError as error:
            raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _one_length(self) -> FinetuneConfig:
        if self.steps is not None and self.epochs is not None:
            raise ValueError("give `steps` or `epochs`, not both")
        return self

    def resolved(self, samples: int, parameters: int, tasks: int = 1, augmentation: str = "shift") -> dict[str, Any]:
        """Return all settings of one task, as JSON values: nothing is left open.

        Args:
            samples: how many are trained on.
            parameters: how many the encoder has.
            tasks: that are trained together.
            augmentation: the usual one of this kind of data.
        """
        steps = self.steps or STEPS * tasks
        if self.epochs is not None:
            taken = max(self.batch_size // tasks, 1) * tasks  # each of several tasks gives as many samples
            steps = max(1, math.ceil(self.epochs * samples / taken))
        rate = self.learning_rate or LEARNING_RATES["small" if parameters < SMALL_ENCODER else "large"]
        warmup = math.ceil(steps / 10) if self.warmup is None else self.warmup
        chosen = {"steps": steps, "learning_rate": rate, "warmup": warmup}
        chosen["augmentation"] = self.augmentation or augmentation
        later = {"method": self.method, "params": params_of(self.row, self.params).model_dump(mode="json")}
        if later == {"method": "standard", "params": params_of(self.row, {}).model_dump(mode="json")}:
            later = {}  # so that keys of older experts stay as they were
        if self.decay != "whole":
            later["decay"] = self.decay
        if self.part is not None:
            later |= {"part": self.part, "after": self.after}
        hidden = {"epochs", "method", "params", "decay", "part", "after"}
        return self.model_dump(mode="json", exclude=hidden) | chosen | later


class FinetuneRequest(Request):
    """Request to train experts of a zoo."""

    REFUSAL = "Experts cannot be trained like this"

    zoo: str
    tasks: Literal["all"] | tuple[str, ...] = "all"
    config: FinetuneConfig = FinetuneConfig()
    teacher: Teacher | None = None
    start: Start | None = None  # where it is not the zoo's own base
    replace: bool = False
    called: str = Field(
        "",
        pattern=rf"^$|{SAFE_NAME}",
        title="Called",
        description="What this way of training is called in the zoo, by default its recipe.",
    )
    checkpoint_every: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _no_taught_joint(self) -> FinetuneRequest:
        if self.teacher is not None and self.config.row.joint:
            raise ValueError("a teacher teaches one task; choose another recipe than joint training")
        return self

    @model_validator(mode="after")
    def _can_start_elsewhere(self) -> FinetuneRequest:
        if self.start is None:
            return self
        if self.config.row.joint:
            raise ValueError("joint training gives the zoo's reference, which starts from the zoo's own base")
        if self.config.row.forward != "standard":
            raise ValueError(
                f"{self.config.row.title} experts are evaluated around the zoo's own base, so they cannot start from "
                "another; choose another recipe"
            )
        return self

    @model_validator(mode="after")
    def _no_named_joint(self) -> FinetuneRequest:
        if self.called and self.config.row.joint:
            raise ValueError(
                f"a jointly trained model is the zoo's reference `{self.config.row.reference}` and has no other name; "
                "leave `called` (--called) out, or copy the zoo and train there"
            )
        return self

    @property
    def method(self) -> str:
        """Return the name under which the manifest lists what is made."""
        return self.called or way_of(self.config.method, taught=self.teacher is not None, moved=self.start is not None)
