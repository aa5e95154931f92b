"""What a worker imports before its first run, so that nobody waits for it."""

from __future__ import annotations

from importlib import import_module

LIBRARIES = ("open_clip.model", "pandas", "pyarrow.parquet", "sklearn.manifold", "torchvision.transforms.v2")
PACKAGE = __name__.split(".", maxsplit=1)[0]


def warm_up() -> None:
    """Import what the steps import when they run."""
    for name in LIBRARIES:
        import_module(name)
    import_module(".analysis.projection", PACKAGE)
