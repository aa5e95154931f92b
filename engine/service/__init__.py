"""The engine service: takes up queued runs and carries their steps out on dask workers.

Pages import :mod:`.client` only, which brings in neither dask nor torch.
"""
