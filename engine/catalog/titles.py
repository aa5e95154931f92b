"""Titles of recipes and their parts, as lists, bars and figures show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..recipe import MethodCall, Recipe
from . import CALIBRATORS, MERGE_METHODS, TRANSFORMS

ROWS = {**MERGE_METHODS, **TRANSFORMS, **CALIBRATORS}  # no two of them share a name


def method_title(method: str) -> str:
    """Return the title of a merge method, a transform or a calibrator; its name where this version has no such row."""
    return ROWS[method].title if method in ROWS else method


def params_in_effect(call: MethodCall) -> Mapping[str, Any]:
    """Return those parameters of a call that have an effect beside its others, for lists of settings."""
    return ROWS[call.method].in_effect(call.params) if call.method in ROWS else call.params


def recipe_title(recipe: Recipe) -> str:
    """Return a recipe in one line, such as ``Task Arithmetic λ 0.3, Surgery``."""
    parts = [method_title(call.method) for call in recipe.transforms]
    parts.append(method_title(recipe.merge.method) + _scaling(recipe.merge))
    parts += [calibrator_title(call.name, call.method) for call in recipe.calibrators]
    return ", ".join(parts)


def calibrator_title(name: str, method: str) -> str:
    """Return a calibrator's title, with its name where it was given one."""
    title = method_title(method)
    return title if name in ("", method) else f"{title} ({name})"


def _scaling(call: MethodCall) -> str:
    """Return a merge's scaling by the symbol that its method has for it; '' where the recipe has no such number."""
    try:
        value = float(call.params["scaling"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return ""
    field = ROWS[call.method].params.model_fields.get("scaling") if call.method in ROWS else None
    last = (field.title or "").split()[-1:] if field else []
    symbol = last[0] if last and len(last[0]) == 1 else "λ"
    return f" {symbol} {value:g}"
