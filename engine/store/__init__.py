"""What outlives a process: content-addressed artefacts and the run table. Free of torch and dask."""

from .keys import canonical_json, step_key

__all__ = ["canonical_json", "step_key"]
