"""Merge eight experts of ViT-B/32 size from files to a file: time, peak memory, ratios to the floor and to peers.

    python benchmarks/merging.py                    # the table; installs the peers once (about 7 GB with torch)
    python benchmarks/merging.py --without-peers    # our own lines only
    python benchmarks/merging.py --quick            # small models, to see that everything works
    python benchmarks/merging.py --uneven           # layers and rows move by different amounts, as in training
    python benchmarks/merging.py --methods ties emr --folder /data/big

Every line runs five times (once above ten seconds; the median is told), each time in a process of its own, which is
ended when it takes more memory than ``--memory`` GiB. Our own lines run in turn, and ratios are medians over the turns:
on a machine that does other things too, neighbours in time are comparable and seconds alone are not. A method's modules
are loaded before its time begins, as an engine at work has them. The floor reads all checkpoints once and writes one;
TA is Task Arithmetic; ``another_lambda`` is no merge from files but θ_0 + λ v in memory, as previews and films have it
where a merged vector is at hand. Weights are random, which costs the same as trained ones. FusionBench and mergekit are
installed from the package index into virtual environments of their own.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.made import Made
from engine.catalog import MERGE_METHODS, TRANSFORMS
from engine.merging.apply import merge
from engine.merging.scaled import Scaled
from engine.recipe import MethodCall
from engine.types import Static, Weights
from engine.weights import LazyTaskVectors, Memory, encoder_part, open_weights, write_weights

EXPERTS = 8
SIZES = {"ViT-B/32": (768, 12), "small": (128, 3)}  # width and blocks
DEFAULT = (
    "task_arithmetic",
    "ties",
    "dare+task_arithmetic",
    "pcb",
    "tsv_m",
    "lwptv+task_arithmetic",
    "pwptv+task_arithmetic",
    "another_lambda",
)
PARAMS: dict[str, dict[str, Any]] = {"dare": {"drop_rate": 0.5}}  # where the peers' setting is not our default
PEERS = {
    "fusionbench": ("fusion_bench==0.2.33", ("task_arithmetic", "ties", "dare+task_arithmetic", "tsv_m")),
    "mergekit": ("mergekit==0.1.4", ("task_arithmetic", "ties", "dare+task_arithmetic")),
}
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mergelens" / "peers"
LOOK = 0.05  # seconds between two looks at a process's memory
RUNS, LONG = 5, 10.0  # a line is run so often, and the median told; once where it takes more seconds than LONG


def shapes(width: int, blocks: int) -> dict[str, tuple[int, ...]]:
    """Return the visual tensors' shapes of a ViT with patches of 32 pixels; 87,849,216 parameters for ViT-B/32."""
    block = {
        "ln_1.weight": (width,),
        "ln_1.bias": (width,),
        "attn.in_proj_weight": (3 * width, width),
        "attn.in_proj_bias": (3 * width,),
        "attn.out_proj.weight": (width, width),
        "attn.out_proj.bias": (width,),
        "ln_2.weight": (width,),
        "ln_2.bias": (width,),
        "mlp.c_fc.weight": (4 * width, width),
        "mlp.c_fc.bias": (4 * width,),
        "mlp.c_proj.weight": (width, 4 * width),
        "mlp.c_proj.bias": (width,),
    }
    ends = {name: (width,) for name in ("ln_pre.weight", "ln_pre.bias", "ln_post.weight", "ln_post.bias")}
    first = {"class_embedding": (width,), "positional_embedding": (50, width), "proj": (width, 2 * width // 3)}
    every = {**first, "conv1.weight": (width, 3, 32, 32), **ends}
    every |= {f"transformer.resblocks.{n}.{name}": shape for n in range(blocks) for name, shape in block.items()}
    return {f"visual.{name}": shape for name, shape in every.items()}


def make_checkpoints(folder: Path, size: str, experts: int = EXPERTS, uneven: bool = False) -> None:
    """Write a base and its experts; of uneven ones some layers and rows move several times as far as others."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = shapes(*SIZES[size])
    base = Made(tensors, 0, 0.05)
    write_weights(folder / "base.safetensors", base)
    for index in range(experts):
        expert = Made(tensors, index + 1, 5e-4 * (1 + index / 10), base, uneven)
        write_weights(folder / f"expert{index}.safetensors", expert)


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


def run_one(folder: Path, what: str, threads: int, keep: bool = False) -> dict[str, float]:
    """Run one line in this process: seconds, processor seconds, and the highest resident memory in GiB."""
    torch.set_num_threads(threads)
    base = encoder_part(open_weights(folder / "base.safetensors"))
    files = sorted(folder.glob("expert*.safetensors"))
    experts = {path.stem: encoder_part(open_weights(path)) for path in files}
    if what == "another_lambda":
        return {**another_lambda(base, experts), "peak_gib": peak_memory()}
    target = folder / f"merged-{what.replace('+', '-')}.safetensors"
    for name in what.split("+"):
        if row := TRANSFORMS.get(name) or MERGE_METHODS.get(name):
            row.load()
    started, worked = time.perf_counter(), time.process_time()
    if what == "floor":
        for weights in (base, *experts.values()):
            for name in weights.names:
                weights.tensor(name)
        write_weights(target, base)
    else:
        *before, method = what.split("+")
        calls = [MethodCall(method=name, params=PARAMS.get(name, {})) for name in before if name in TRANSFORMS]
        context = PlainContext(tuple(experts))
        merged = merge(base, LazyTaskVectors(base, experts), calls, MethodCall(method=method), context)
        write_weights(target, merged.weights if isinstance(merged, Static) else Memory(merged.parts))
    seconds, worked = time.perf_counter() - started, time.process_time() - worked
    if not keep:
        target.unlink()
    return {"seconds": seconds, "cpu_seconds": worked, "peak_gib": peak_memory()}


def another_lambda(base: Weights, experts: Mapping[str, Weights]) -> dict[str, float]:
    """Write a model with another λ over one with the first, from the base and a merged vector in memory."""
    kept = Memory({name: base.tensor(name) for name in base.names})
    call = MethodCall(method="task_arithmetic", params={"scaling": 1.0})
    added = merge(base, LazyTaskVectors(base, experts), [], call, PlainContext(tuple(experts))).weights
    vector = {name: added.vector(name).clone() for name in added.layers}
    model = {name: torch.empty(base.shape(name), dtype=base.dtype(name)) for name in base.names}
    for scaling in (0.3, 0.4):  # the first touches the model's memory
        weights = Scaled(kept, vector, scaling)
        started, worked = time.perf_counter(), time.process_time()
        for name, tensor in model.items():
            weights.read_into(name, tensor)
    return {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - worked}


def peak_memory() -> float:
    """Highest resident memory of this process in GiB; not its parent's, which getrusage may report after a fork."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)


def run_apart(command: Sequence[str], limit: float) -> dict[str, float] | str:
    """Run one line in a process of its own; why there is no number, if it failed or took too much memory."""
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(list(command), stdout=out, stderr=log, text=True) as process,
    ):
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            time.sleep(LOOK)
            if resident(status) > limit:
                process.kill()
                process.wait()
                return f"more than {limit:.1f} GiB"
        out.seek(0)
        log.seek(0)
        if process.returncode:
            lines = log.read().strip().splitlines()
            return f"failed: {lines[-1][:90] if lines else f'exit code {process.returncode}'}"
        return json.loads(out.read().splitlines()[-1])


def run_in_turn(commands: Mapping[str, Sequence[str]], limit: float) -> dict[str, list[dict[str, float]] | str]:
    """Run all lines, then all of them again: every line's runs, or why there are none."""
    found: dict[str, list[dict[str, float]] | str] = {what: [] for what in commands}
    for _ in range(RUNS):
        for what, command in commands.items():
            runs = found[what]
            if isinstance(runs, str) or (runs and runs[0]["seconds"] > LONG):
                continue
            last = run_apart(command, limit)
            if isinstance(last, str):
                found[what] = last
            else:
                runs.append(last)
    return found


def ratio(runs: Sequence[Mapping[str, float]], others: Sequence[Mapping[str, float]] | str, key: str) -> float:
    """Return the median over turns of one line's number divided by another's, which is not a number if it failed."""
    if isinstance(others, str):
        return math.nan
    return statistics.median(one[key] / other[key] for one, other in zip(runs, others, strict=False))


def run_often(command: Sequence[str], limit: float, target: Path | None = None) -> dict[str, float] | str:
    """Return the median of a line's runs by seconds, or why there is none; what it wrote is removed."""
    found: list[dict[str, float]] = []
    while not found or (len(found) < RUNS and found[0]["seconds"] <= LONG):
        last = run_apart(command, limit)
        if target:
            shutil.rmtree(target.with_suffix(""), ignore_errors=True)
            target.unlink(missing_ok=True)
        if isinstance(last, str):
            return last
        found.append(last)
    return sorted(found, key=lambda run: run["seconds"])[len(found) // 2]


def resident(status: Path) -> float:
    """Resident memory of a process in GiB; 0 where that cannot be read."""
    try:
        return next(int(x.split()[1]) for x in status.read_text().splitlines() if x.startswith("VmRSS:")) / 2**20
    except (OSError, StopIteration):
        return 0.0


def install_peers(cache: Path) -> dict[str, Path]:
    """Install every peer into its own environment, once; name → its Python."""
    found = {}
    for peer, (requirement, _) in PEERS.items():
        python = cache / requirement.replace("==", "-") / "bin" / "python"
        ready = python.parents[1] / "ready"
        if not ready.exists():
            print(f"Installing {requirement} into {python.parents[1]} …", file=sys.stderr)
            venv.create(python.parents[1], with_pip=True, clear=True)
            done = subprocess.run([python, "-m", "pip", "install", "-q", requirement], capture_output=True, text=True)
            if done.returncode:
                print(f"{requirement} cannot be installed: {done.stderr.strip()[-300:]}", file=sys.stderr)
                continue
            ready.touch()
        found[peer] = python
    return found


def available() -> float:
    """Memory that a process may take without endangering the machine, in GiB."""
    info = Path("/proc/meminfo")
    if not info.exists():
        return 1e9
    line = next(line for line in info.read_text().splitlines() if line.startswith("MemAvailable:"))
    return 0.9 * int(line.split()[1]) / 2**20


def print_table(folder: Path, options: argparse.Namespace, peers: Mapping[str, Path]) -> None:
    """Print a line for each method: ours, then every peer with its ratio to ours."""
    heads = "".join(f"{peer:>14}{'ratio':>8}{'GiB':>7}" for peer in peers)
    print(f"{'':24}{'seconds':>9}{'floor':>7}{'CPU s':>9}{'floor':>7}{'TA':>7}{'GiB':>7}{heads}")
    own = [sys.executable, __file__, "--folder", str(folder), "--threads", str(options.threads), "--one"]
    lines = dict.fromkeys(("floor", "task_arithmetic", *options.methods))
    every = run_in_turn({what: [*own, what] for what in lines}, options.memory)
    for what, runs in every.items():
        if isinstance(runs, str):
            print(f"{what:24}{runs}", flush=True)
            continue
        seconds, worked, peak = (statistics.median(run[key] for run in runs) for key in runs[0])
        shares = [ratio(runs, every["floor"], key) for key in ("seconds", "cpu_seconds")]
        shares.append(ratio(runs, every["task_arithmetic"], "cpu_seconds"))
        times = f"{seconds:9.2f}{shares[0]:7.1f}{worked:9.2f}{shares[1]:7.1f}{shares[2]:7.2f}{peak:7.2f}"
        print(f"{what:24}{times}{peer_cells(what, seconds, folder, options, peers)}", flush=True)


def peer_cells(what: str, seconds: float, folder: Path, options: argparse.Namespace, peers: Mapping[str, Path]) -> str:
    """Return what the peers take for a line of ours, and how many times our seconds that is."""
    cells = ""
    for peer, python in peers.items():
        if what not in PEERS[peer][1]:
            cells += f"{'–':>14}{'':15}"
            continue
        target = folder / "peer.safetensors"
        script = Path(__file__).with_name("peer.py")
        command = [str(python), str(script), peer, what, str(folder), str(target), str(options.threads)]
        other = run_often(command, options.memory, target)
        if isinstance(other, str):
            cells += f"{other[:28]:>29}"
        else:
            cells += f"{other['seconds']:14.2f}{other['seconds'] / seconds:8.1f}{other['peak_gib']:7.2f}"
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=DEFAULT, help="method, or transform+method")
    parser.add_argument("--folder", type=Path, help="keep the checkpoints here (default: a temporary folder)")
    parser.add_argument("--experts", type=int, default=EXPERTS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="small models")
    parser.add_argument("--uneven", action="store_true", help="layers and rows that differ in how far they move")
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--peers", type=Path, default=CACHE, help="where the peers are installed")
    parser.add_argument("--memory", type=float, default=available(), help="GiB that a line may take")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--keep", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_one(options.folder, options.one, options.threads, options.keep)))
        return
    size = "small" if options.quick else "ViT-B/32"
    peers = {} if options.without_peers else install_peers(options.peers)
    with tempfile.TemporaryDirectory() as temporary:
        kind = "uneven" if options.uneven else "even"
        folder = (options.folder or Path(temporary)) / f"{size.replace('/', '-')}-{options.experts}-{kind}"
        if not (folder / f"expert{options.experts - 1}.safetensors").exists():
            make_checkpoints(folder, size, options.experts, options.uneven)
        versions = ", ".join(requirement for peer, (requirement, _) in PEERS.items() if peer in peers)
        print(
            f"{platform.machine()}, {os.cpu_count()} cores, {options.threads} thread(s), Python "
            f"{platform.python_version()}, torch {torch.__version__}; {options.experts} {kind} experts of {size} size "
            f"in float32; at most {options.memory:.1f} GiB a process{'; ' + versions if versions else ''}"
        )
        print_table(folder, options, peers)
        print(
            "floor: ratio to reading all checkpoints once and writing one. ratio: a peer's seconds to ours, files to "
            "file. Median of five runs (one above ten seconds). Peak resident memory. –: the peer has no such method. "
            "mergekit trims TIES within each tensor."
        )


if __name__ == "__main__":
    main()
