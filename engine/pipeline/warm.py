"""What a worker imports before its first run, so that nobody waits for it."""

from __future__ import annotations


def warm_up() -> None:
    """Import what the steps import when they run."""
    import open_clip.model
    import pandas
    import pyarrow.parquet
    import sklearn.manifold
    import torchvision.transforms.v2  # noqa: F401

    from ..analysis import projection  # noqa: F401
    from . import bundle, calibrating, encoding, merging, projecting  # noqa: F401
