"""Checkpoints of true ViT-B/32 size in and out: seconds, peak memory, and how exactly they come back.

    python benchmarks/importing.py [--folder FOLDER] [--experts 2]

Makes a base and experts with random weights as whole pickled modules and as Hugging Face folders, imports each set as
a zoo, merges it, writes the merge as a Hugging Face folder and reads that again. Needs 1.5 GB of disk an expert.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import open_clip
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.pipeline.exporting import export_model
from engine.pipeline.local import run_recipe
from engine.recipe import parse_recipe
from engine.store import Store
from engine.weights import open_weights, visual
from engine.zoo.folder import Zoo
from engine.zoo.importing.convert import import_zoo
from engine.zoo.importing.layouts import find_encoder
from engine.zoo.importing.request import parse_request
from engine.zoo.importing.sources import open_source
from tests.made_checkpoints import clip, moved, visual_of, write_hf, write_pickle

ARCHITECTURE = "ViT-B-32-quickgelu"


def main() -> None:
    """Print one line for each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to work; default a temporary folder")
    parser.add_argument("--experts", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        files = make(Path(folder), given.experts)
        for form, (base, experts) in files.items():
            measure(form, base, experts, Path(folder) / form)


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
    return found


def measure(form: str, base: Path, experts: list[Path], folder: Path) -> None:
    """Import, merge, write, read."""
    folder.mkdir()
    items = [{"name": f"task{number}", "path": str(path)} for number, path in enumerate(experts)]
    request = parse_request({"base": str(base), "experts": items, "name": form, "out": str(folder / "zoo")})
    timed(f"{form}: import of {len(experts) + 1} models", lambda: import_zoo(request, lambda *_: None))
    store = Store(folder / "store")
    recipe = parse_recipe({"zoo": str(folder / "zoo")})
    timed(f"{form}: run (task arithmetic)", lambda: run_recipe(recipe, store, out=folder / "run"))
    timed(f"{form}: export", lambda: export_model(folder / "run", folder / "hf", "hf", store.digest_file))
    merged = visual(open_weights(folder / "run" / "merged.safetensors"))
    again = find_encoder(open_source(folder / "hf")).visual
    worst = max(float((merged.tensor(name) - again.tensor(name)).abs().max()) for name in merged.names)
    brought = find_encoder(open_source(base)).visual
    stored = Zoo.open(str(folder / "zoo")).weights("base")
    exact = all(torch.equal(brought.tensor(name), stored.tensor(name)) for name in stored.names)
    print(f"{form}: largest difference after the round trip {worst:.1e}; base imported exactly: {exact}")


def timed(what: str, action: Callable[[], Any]) -> None:
    """Carry something out and print its time and the peak of the process's memory so far."""
    started = time.perf_counter()
    action()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what}: {time.perf_counter() - started:.1f} s, peak {peak:,.0f} MiB")


if __name__ == "__main__":
    main()
