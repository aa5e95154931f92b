"""Checkpoints of true ViT-B/32 size in and out: seconds, peak memory, and how exactly they come back.

    python benchmarks/importing.py [--folder FOLDER] [--experts 2] [--pages]

Makes a base and experts with random weights as whole pickled modules and as Hugging Face folders, with heads and a few
images, imports each set as a zoo, runs a recipe on it (merge, features, a calibrator), writes the merge as a Hugging
Face folder and reads that again; with --pages every page of the app opens on the run. Needs 1.5 GB of disk an expert.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.pipeline.export.model import export_model
from engine.pipeline.local import run_recipe
from engine.recipe import parse_recipe
from engine.store import Store
from engine.weights import encoder_part, open_weights
from engine.zoo.folder import Zoo
from engine.zoo.importing.convert import import_zoo
from engine.zoo.importing.layouts import find_encoder
from engine.zoo.importing.request import parse_request
from engine.zoo.importing.sources import open_source
from tests.made_checkpoints import clip, moved, visual_of, write_head, write_hf, write_pickle

ARCHITECTURE = "ViT-B-32-quickgelu"
CLASSES, IMAGES, SIDE = 5, 40, 64
RECIPE = {
    "transforms": [{"method": "lwptv"}],
    "merge": {"method": "task_arithmetic"},
    "calibrators": [{"method": "surgery", "params": {"steps": 50, "batch_size": 8}}],
}
ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Print one line for each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to work; default a temporary folder")
    parser.add_argument("--experts", type=int, default=2)
    parser.add_argument("--pages", action="store_true", help="also open every page of the app on the run")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        files = make(Path(folder), given.experts)
        for form, (base, experts) in files.items():
            store, run = measure(form, base, experts, Path(folder) / form)
            if given.pages:
                timed(f"{form}: every page", lambda store=store, run=run: open_pages(store, run))


def make(folder: Path, count: int) -> dict[str, tuple[Path, list[Path]]]:
    """Write both sets of files; the Hugging Face experts keep the base's projection."""
    config = dict(open_clip.get_model_config(ARCHITECTURE))
    base = visual_of(clip(config=config))
    found: dict[str, tuple[Path, list[Path]]] = {
        "pickles": (write_pickle(folder / "zeroshot.pt", base, config=config), []),
        "huggingface": (write_hf(folder / "clip-vit-base-patch32", base, config=config), []),
    }
    for number in range(count):
        tuned = moved(base, number, keep=("visual.proj",))
        found["pickles"][1].append(write_pickle(folder / f"task{number}" / "finetuned.pt", tuned, config=config))
        found["huggingface"][1].append(write_hf(folder / f"task{number}", tuned, projection=False, config=config))
        write_head(folder / f"head_task{number}.pt", torch.randn(CLASSES, config["embed_dim"]))
        images = np.random.default_rng(number).integers(0, 255, (IMAGES, SIDE, SIDE, 3), dtype=np.uint8)
        np.savez(folder / f"task{number}.npz", test_x=images, test_y=np.arange(IMAGES) % CLASSES)
    return found


def measure(form: str, base: Path, experts: list[Path], folder: Path) -> tuple[Store, str]:
    """Import, run, write, read; the store and the run's id."""
    folder.mkdir()
    names = [f"task{number}" for number in range(len(experts))]
    items = [{"name": name, "path": str(path)} for name, path in zip(names, experts, strict=True)]
    more = {
        "heads": [{"path": str(folder.parent / f"head_{name}.pt"), "task": name} for name in names],
        "data": {name: str(folder.parent / f"{name}.npz") for name in names},
    }
    more |= {"preprocess": "openai", "out": str(folder / "zoo")}
    request = parse_request({"base": str(base), "experts": items, "name": form, **more})
    timed(f"{form}: import of {len(experts) + 1} models", lambda: import_zoo(request, lambda *_: None))
    store = Store(folder / "store")
    recipe = parse_recipe({"zoo": str(folder / "zoo"), **RECIPE})
    timed(
        f"{form}: run (LwPTV, Task Arithmetic, Surgery; {IMAGES} images a task)",
        lambda: run_recipe(recipe, store, view={"method": "pca"}, out=folder / "run"),
    )
    timed(f"{form}: export", lambda: export_model(folder / "run", folder / "hf", "hf", store.digest_file))
    merged = encoder_part(open_weights(folder / "run" / "merged.safetensors"))
    again = find_encoder(open_source(folder / "hf")).visual
    worst = max(float((merged.tensor(name) - again.tensor(name)).abs().max()) for name in merged.names)
    brought = find_encoder(open_source(base)).visual
    stored = Zoo.open(str(folder / "zoo")).weights("base")
    exact = all(torch.equal(brought.tensor(name), stored.tensor(name)) for name in stored.names)
    print(f"{form}: largest difference after the round trip {worst:.1e}; base imported exactly: {exact}")
    return store, store.runs.list(kinds=("run",))[0].id


def open_pages(store: Store, run: str) -> None:
    """Open every page on a run, as a browser would ask for it; no engine is started."""
    from streamlit.testing.v1 import AppTest

    from pages.shared import jobs as _jobs

    logging.disable(logging.WARNING)  # of a script that runs without a server
    os.environ["MERGELENS_STORE"] = str(store.root)
    os.chdir(ROOT)
    _jobs.ensure_service = lambda store: "The engine is not needed here."
    names = sorted(path.stem for path in (ROOT / "pages").glob("[a-z]*.py"))
    for name in names:
        app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
        app.query_params["run"] = run
        app.run()
        app.switch_page(f"pages/{name}.py").run()
        wrong = [str(part.value) for part in [*app.exception, *app.error]]
        if wrong:
            raise SystemExit(f"The page {name} does not open: {wrong[0]}")
    print(f"opened: {', '.join(names)}")


def timed(what: str, action: Callable[[], Any]) -> None:
    """Carry something out and print its time and the peak of the process's memory so far."""
    started = time.perf_counter()
    action()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what}: {time.perf_counter() - started:.1f} s, peak {peak:,.0f} MiB")


if __name__ == "__main__":
    main()
