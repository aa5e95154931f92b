"""Views on a run or a recipe: a file each, with its request, its plan, its steps and its declaration.

A file put into this package is a view; there is no list to extend.
"""

from __future__ import annotations

import pkgutil
from functools import lru_cache
from importlib import import_module
from types import MappingProxyType

from ...errors import EngineError, nearest
from ..viewing.base import View


@lru_cache(maxsize=1)
def all_views() -> MappingProxyType[str, View]:
    """Return every view by its name."""
    modules = [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    views = [value for module in modules for value in vars(module).values() if isinstance(value, View)]
    return MappingProxyType({view.name: view for view in views})


def view_of(name: str) -> View:
    """Return a view by its name.

    Raises:
        EngineError: there is none of that name.
    """
    views = all_views()
    if name not in views:
        raise EngineError(f"There is no view '{name}'. {nearest(name, views)}")
    return views[name]
