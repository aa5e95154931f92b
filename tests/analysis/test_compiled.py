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

    find, refused = compiled.import_module, []

    def refuse_once(name):
        if not refused:
            refused.append(name)
            raise RuntimeError(f"cannot cache function 'rdist': no locator available for file '{name}'")
        return find(name)

    monkeypatch.setattr(compiled, "import_module", refuse_once)
    monkeypatch.setattr(config, "CACHE_DIR", config.CACHE_DIR)
    umap = compiled.umap.__wrapped__()
    assert refused == ["umap"]
    assert umap(n_neighbors=5, random_state=0, n_jobs=1).fit_transform(np.eye(30)).shape == (30, 2)
    kept = Path(config.CACHE_DIR)
    assert kept.is_dir()
    assert kept in Path(njit(cache=True)(_double).stats.cache_path).parents
    compiled._folder_of_this_process().cleanup()
    assert not kept.exists()


def _double(number):
    return 2 * number
