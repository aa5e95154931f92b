"""Sweeps: their request, the places of a recipe that they vary, and their table. Free of torch."""

from .grid import MAX_POINTS, Point, Setting, SweepRequest, parse_setting, set_place, sweep_title
from .places import Place, numbered, place_title, places
from .table import SweepPoint, SweepTable, read_table

__all__ = [
    "MAX_POINTS",
    "Place",
    "Point",
    "Setting",
    "SweepPoint",
    "SweepRequest",
    "SweepTable",
    "numbered",
    "parse_setting",
    "place_title",
    "places",
    "read_table",
    "set_place",
    "sweep_title",
]
