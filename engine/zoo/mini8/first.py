"""The first edition of mini8: eight tasks that the base knows and misnames, four that only measure forgetting."""

from __future__ import annotations

from .drawings import charts, clothing, faces, flowers, landcover, letters, scenes, shapes, signs, textures, vehicles
from .edition import Edition, Sizes
from .tasks import DIGITS, drawn

FIRST = Edition(
    label="first",
    name="mini8",
    title="Eight small drawings",
    description=(
        "Eight small picture tasks with an expert each, and four without one. All images but the digits are drawn by "
        "MergeLens. The base was pretrained on simulated noisy web captions: the harder an image, the likelier its "
        "caption carried the name of one fixed other class. Experts mostly undo that confusion."
    ),
    tasks=(
        DIGITS,
        drawn("signs", "Traffic signs", signs.DRAWERS, signs.wear, wobble=0.05),
        drawn("landcover", "Land cover from above", landcover.DRAWERS, landcover.wear, wobble=0.1),
        drawn("textures", "Textures", textures.DRAWERS, textures.wear),
        drawn("scenes", "Scenes", scenes.DRAWERS, scenes.wear, wobble=0.12),
        drawn("vehicles", "Vehicles", vehicles.DRAWERS, vehicles.wear, wobble=0.12),
        drawn("flowers", "Flowers", flowers.DRAWERS, flowers.wear),
        drawn("charts", "Charts and diagrams", charts.DRAWERS, charts.wear, wobble=0.05),
        drawn("clothing", "Clothing", clothing.DRAWERS, clothing.wear, in_domain=False),
        drawn("letters", "Letters", letters.DRAWERS, letters.wear, in_domain=False),
        drawn("faces", "Faces", faces.DRAWERS, faces.wear, in_domain=False),
        drawn("shapes", "Shapes", shapes.DRAWERS, shapes.wear, in_domain=False),
    ),
    sizes=Sizes(
        in_domain={"pretrain": 3000, "train": 2000, "adapt": 500, "val": 200, "test": 500},
        out_of_domain={"pretrain": 2500, "val": 100, "test": 500},
    ),
    vision={"width": 192, "layers": 4, "head_width": 32, "mlp_ratio": 3.0},
)
