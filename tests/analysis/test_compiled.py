"""Functions that numba compiles for UMAP are kept on disk, and nobody needs a folder of their own for it."""

from pathlib import Path

import numpy as np
import pytest

from engine.analysis import compiled

pytestmark = pytest.mark.slow


def test_compiled_functions_are_kept():
    compiled.umap()
    from umap.umap_ import smooth_knn_dist
    from umap.utils import fast_knn_indices

    for function in (smooth_knn_dist, fast_knn_indices):
        assert Path(function.stats.cache_path).is_dir()


def test_where_nothing_may_be_written_code_is_kept_for_one_process(monkeypatch):
    from numba import config, njit
    from umap import distances

    find, refused = compiled.import_module, []

    def refuse_once(name):
        if not refused:
            refused.append(name)
            raise RuntimeError(f"cannot cache function 'rdist': no locator available for file '{name}'")
        return find(name)

    monkeypatch.setattr(compiled, "import_module", refuse_once)
    monkeypatch.setattr(config, "CACHE_DIR", config.CACHE_DIR)
    assert compiled.umap.__wrapped__() is compiled.umap()
    assert refused == ["umap"]
    kept = Path(config.CACHE_DIR)
    assert kept in Path(njit(cache=True)(_double).stats.cache_path).parents
    assert distances.canberra(np.eye(3)[0], np.eye(3)[1]) == 2  # one of which no projection asks, compiled here first
    assert [path.name.partition("-")[0] for path in kept.rglob("*.nbi")] == ["distances.canberra"]
    compiled._folder_of_this_process().cleanup()
    assert not kept.exists()
    monkeypatch.undo()
    compiled.umap.__wrapped__()  # keeps them beside the library again, for other tests in this process


def _double(number):
    return 2 * number
