"""Merge eight experts of ViT-B/32 size from files to a file; print times, ratios to reading once, and peak memory.

    python benchmarks/merging.py                       # the table
    python benchmarks/merging.py --methods ties tsv_m  # others
    python benchmarks/merging.py --folder /data/big    # where the 3.2 GB of checkpoints go

Every line runs in a process of its own. "floor" reads all checkpoints once and writes one; ratios are to it, measured
in the same run. The weights are random, which costs the same as trained ones.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.catalog import TRANSFORMS
from engine.merging.apply import merge
from engine.recipe import MethodCall
from engine.types import Static
from engine.weights import LazyTaskVectors, Memory, open_weights, visual, write_weights

EXPERTS = 8
WIDTH, BLOCKS = 768, 12
DEFAULT = ("floor", "task_arithmetic", "ties", "lwptv+task_arithmetic", "dare+task_arithmetic", "weight_average", "emr")


def shapes() -> dict[str, tuple[int, ...]]:
    """The 152 visual tensors of ViT-B/32, 87,849,216 parameters."""
    block = {
        "ln_1.weight": (WIDTH,), "ln_1.bias": (WIDTH,),
        "attn.in_proj_weight": (3 * WIDTH, WIDTH), "attn.in_proj_bias": (3 * WIDTH,),
        "attn.out_proj.weight": (WIDTH, WIDTH), "attn.out_proj.bias": (WIDTH,),
        "ln_2.weight": (WIDTH,), "ln_2.bias": (WIDTH,),
        "mlp.c_fc.weight": (4 * WIDTH, WIDTH), "mlp.c_fc.bias": (4 * WIDTH,),
        "mlp.c_proj.weight": (WIDTH, 4 * WIDTH), "mlp.c_proj.bias": (WIDTH,),
    }  # fmt: skip
    ends = {name: (WIDTH,) for name in ("ln_pre.weight", "ln_pre.bias", "ln_post.weight", "ln_post.bias")}
    first = {"class_embedding": (WIDTH,), "positional_embedding": (50, WIDTH), "proj": (WIDTH, 512)}
    blocks = {f"transformer.resblocks.{n}.{name}": shape for n in range(BLOCKS) for name, shape in block.items()}
    every = {**first, "conv1.weight": (WIDTH, 3, 32, 32), **ends, **blocks}
    return {f"visual.{name}": shape for name, shape in every.items()}


class Noise:
    """Weights that are slices of one block of random numbers, another slice for every tensor, on top of others."""

    block = torch.randn(2**22, generator=torch.Generator().manual_seed(0))

    def __init__(self, start: int, scale: float, on: Any = None) -> None:
        self._shapes, self._start, self._scale, self._on = shapes(), start, scale, on
        self.names = tuple(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def dtype(self, name: str) -> torch.dtype:
        return torch.float32

    def tensor(self, name: str) -> torch.Tensor:
        size = torch.Size(self.shape(name)).numel()
        start = (self._start * 104_729 + self.names.index(name) * 7_919) % (len(self.block) - size)
        values = self.block[start : start + size].mul(self._scale).view(self.shape(name))
        return values if self._on is None else values.add_(self._on.tensor(name))


def make_checkpoints(folder: Path, experts: int = EXPERTS) -> None:
    """Write a base and its experts."""
    folder.mkdir(parents=True, exist_ok=True)
    base = Noise(0, 0.05)
    write_weights(folder / "base.safetensors", base)
    for index in range(experts):
        write_weights(folder / f"expert{index}.safetensors", Noise(index + 1, 5e-4 * (1 + index / 10), base))


class PlainContext:
    """A context for methods without data: nothing is reported, everything is kept in memory."""

    seed = 0

    def __init__(self, tasks: tuple[str, ...]) -> None:
        self.tasks, self._kept = tasks, {}

    def progress(self, fraction: float, message: str = "") -> None:
        """Take no notice."""

    def cached(self, expert: str, quantity: str, params: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
        key = json.dumps([expert, quantity, params], sort_keys=True)
        if key not in self._kept:
            self._kept[key] = compute()
        return self._kept[key]


def run_one(folder: Path, what: str, threads: int) -> dict[str, float]:
    """Run one line in this process: seconds, processor seconds, and the highest resident memory in GiB."""
    torch.set_num_threads(threads)
    base = visual(open_weights(folder / "base.safetensors"))
    files = sorted(folder.glob("expert*.safetensors"))
    experts = {path.stem: visual(open_weights(path)) for path in files}
    target = folder / f"merged-{what.replace('+', '-')}.safetensors"
    started, worked = time.perf_counter(), time.process_time()
    if what == "floor":
        for weights in (base, *experts.values()):
            for name in weights.names:
                weights.tensor(name)
        write_weights(target, base)
    else:
        *before, method = what.split("+")
        calls = [MethodCall(method=name) for name in before if name in TRANSFORMS]
        context = PlainContext(tuple(experts))
        merged = merge(base, LazyTaskVectors(base, experts), calls, MethodCall(method=method), context)
        write_weights(target, merged.weights if isinstance(merged, Static) else Memory(merged.parts))
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - worked,
        "peak_gib": peak_memory(),
    }


def peak_memory() -> float:
    """Highest resident memory of this process in GiB; not its parent's, which getrusage may report after a fork."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)


def run_apart(folder: Path, what: str, threads: int = 1) -> dict[str, float]:
    """Run one line in a process of its own."""
    command = [sys.executable, __file__, "--folder", str(folder), "--threads", str(threads), "--one", what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{what} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=DEFAULT, help="method, or transform+method; 'floor' reads only")
    parser.add_argument("--folder", type=Path, help="keep the checkpoints here (default: a temporary folder)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_one(options.folder, options.one, options.threads)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if not (folder / f"expert{EXPERTS - 1}.safetensors").exists():
            make_checkpoints(folder)
        print(
            f"{platform.machine()}, {os.cpu_count()} cores, {options.threads} thread(s), Python "
            f"{platform.python_version()}, torch {torch.__version__}; {EXPERTS} experts of ViT-B/32 in float32"
        )
        print(f"{'':28}{'seconds':>9}{'ratio':>8}{'CPU s':>9}{'ratio':>8}{'peak GiB':>10}")
        floor: dict[str, float] = {}
        for what in dict.fromkeys(("floor", *options.methods)):
            found = run_apart(folder, what, options.threads)
            floor = floor or found
            times = "".join(f"{found[key]:9.2f}{found[key] / floor[key]:8.1f}" for key in ("seconds", "cpu_seconds"))
            print(f"{what:28}{times}{found['peak_gib']:10.2f}", flush=True)


if __name__ == "__main__":
    main()
