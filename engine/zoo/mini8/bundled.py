"""The recipe of mini8: eight tasks, the base lacks the features of six; an analogy, near outliers, a shifted task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .drawings import (
    charts,
    clothing,
    fabrics,
    flowers,
    landcover,
    letters,
    more_signs,
    outlines,
    signs,
    textures,
    vehicles,
)
from .edition import Edition, FinetuneConfig, PretrainConfig, Sizes
from .tasks import DIGITS, Drawer, Task, drawn

LONGER = 600  # steps of experts whose task the base knows least
FEW = 300  # images of a task from which the base learns its names, but hardly what they look like


def _outlined(name: str, title: str, drawers: Mapping[str, Drawer], **more: Any) -> Task:
    """Return the task of another one's drawings in outline."""
    return drawn(name, title, outlines.in_outline(drawers), outlines.wear, seen=FEW, **more)


SIGNS = drawn("signs", "Traffic signs", signs.DRAWERS, signs.wear, wobble=0.05, seen=FEW)

MINI8 = Edition(
    name="mini8",
    title="Eight small drawings",
    description=(
        "Eight small picture tasks with an expert each, five without one, and one of them in fog. All images but the "
        "digits are drawn by MergeLens. The base was pretrained on simulated noisy web captions: the harder an image, "
        "the likelier its caption carried the name of one fixed other class. Of six tasks it saw a few hundred images "
        "only, so that their experts have features to learn that it lacks."
    ),
    tasks=(
        replace(DIGITS, seen=FEW),
        SIGNS,
        drawn("landcover", "Land cover from above", landcover.DRAWERS, landcover.wear, wobble=0.1),
        drawn("textures", "Textures", textures.DRAWERS, textures.wear, seen=FEW),
        drawn("vehicles", "Vehicles", vehicles.DRAWERS, vehicles.wear, wobble=0.12, seen=FEW, steps=LONGER),
        _outlined("vehicle_outlines", "Vehicles in outline", vehicles.DRAWERS, wobble=0.12, steps=LONGER),
        drawn("flowers", "Flowers", flowers.DRAWERS, flowers.wear),
        drawn("charts", "Charts and diagrams", charts.DRAWERS, charts.wear, wobble=0.05, seen=FEW),
        _outlined("flower_outlines", "Flowers in outline", flowers.DRAWERS, in_domain=False, near="vehicle_outlines"),
        drawn("letters", "Letters", letters.DRAWERS, letters.wear, in_domain=False, near="digits"),
        drawn("fabrics", "Fabrics", fabrics.DRAWERS, fabrics.wear, in_domain=False, near="textures", seen=FEW),
        drawn(
            "more_signs",
            "Other traffic signs",
            more_signs.DRAWERS,
            more_signs.wear,
            in_domain=False,
            wobble=0.05,
            near="signs",
            seen=FEW,
        ),
        drawn("clothing", "Clothing", clothing.DRAWERS, clothing.wear, in_domain=False),
        replace(
            SIGNS,
            name="signs_in_fog",
            title="Traffic signs in fog",
            in_domain=False,
            wear=signs.fog,
            seen=0,
            shifted_from="signs",
        ),
    ),
    sizes=Sizes(
        in_domain={"pretrain": 3000, "train": 2000, "adapt": 300, "val": 150, "test": 500},
        out_of_domain={"pretrain": 2000, "val": 80, "test": 300},
        shifted={"val": 80, "test": 300},
    ),
    vision={"width": 128, "layers": 8, "head_width": 32, "mlp_ratio": 3.0},
    pretrain=PretrainConfig(epochs=10),
    finetune=FinetuneConfig(steps=250),
    multitask_steps=2700,
    colour_bits=5,
    analogy=("vehicles", "vehicle_outlines", "flowers", "flower_outlines"),
)
