"""One merge by another library, run by ``benchmarks/merging.py`` with that library's own Python; prints JSON.

    PEER_PYTHON benchmarks/peer.py fusionbench ties FOLDER TARGET

Seconds are from the first file to the written result, without imports; they include loading, as ours do.
"""

import contextlib
import json
import sys
import time
from pathlib import Path

import torch


def main() -> None:
    peer, method, folder, target, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    seconds, merging = PEERS[peer](method, Path(folder), Path(target))
    status = Path("/proc/self/status").read_text().splitlines()
    peak = int(next(line for line in status if line.startswith("VmHWM:")).split()[1]) / 2**20
    print(json.dumps({"seconds": seconds, "merge_seconds": merging, "peak_gib": peak}))


def fusionbench(method: str, folder: Path, target: Path) -> tuple[float, float]:
    """Models are loaded into modules first, as its algorithms want them."""
    from fusion_bench import BaseModelPool
    from fusion_bench.method.dare import DareTaskArithmetic
    from fusion_bench.method.task_arithmetic import TaskArithmeticAlgorithm
    from fusion_bench.method.task_singular_vector import TaskSingularVectorMerging
    from fusion_bench.method.ties_merging import TiesMergingAlgorithm
    from safetensors.torch import load_file, save_file

    algorithms = {
        "task_arithmetic": lambda: TaskArithmeticAlgorithm(scaling_factor=0.3),
        "ties": lambda: TiesMergingAlgorithm(scaling_factor=0.3, threshold=20, remove_keys=[], merge_func="sum"),
        "dare+task_arithmetic": lambda: DareTaskArithmetic(
            scaling_factor=0.3, sparsity_ratio=0.5, only_on_linear_weights=False, rescale=True
        ),
        "tsv_m": lambda: TaskSingularVectorMerging(alpha=1.0),
    }
    algorithm = algorithms[method]()
    started = time.perf_counter()
    files = {"_pretrained_": folder / "base.safetensors"}
    files |= {path.stem: path for path in sorted(folder.glob("expert*.safetensors"))}
    models = {name: module_of(load_file(path)) for name, path in files.items()}
    loaded = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        merged = algorithm.run(BaseModelPool(models))
    done = time.perf_counter()
    save_file({name: tensor.contiguous() for name, tensor in merged.state_dict().items()}, target)
    return time.perf_counter() - started, done - loaded


def module_of(tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    """Make a module whose state dict is these tensors."""
    root = torch.nn.Module()
    for name, tensor in tensors.items():
        place = root
        *path, last = name.split(".")
        for part in path:
            if part not in place._modules:
                place.add_module(part, torch.nn.Module())
            place = place._modules[part]
        place.register_parameter(last, torch.nn.Parameter(tensor))
    return root


def mergekit(method: str, folder: Path, target: Path) -> tuple[float, float]:
    """Its script for plain checkpoints. Its ``ties`` trims within each tensor."""
    import yaml
    from mergekit.scripts.merge_raw_pytorch import main as merge

    name, each, every = {
        "task_arithmetic": ("task_arithmetic", {"weight": 1.0, "density": 1.0}, {"lambda": 0.3}),
        "ties": ("ties", {"weight": 1.0, "density": 0.2}, {"lambda": 0.3, "normalize": False}),
        "dare+task_arithmetic": ("dare_linear", {"weight": 1.0, "density": 0.5}, {"lambda": 0.3}),
    }[method]
    models = [{"model": str(path), "parameters": each} for path in sorted(folder.glob("expert*.safetensors"))]
    base = str(folder / "base.safetensors")
    document = {"merge_method": name, "base_model": base, "models": models, "parameters": every, "dtype": "float32"}
    config = target.with_suffix(".yaml")
    config.write_text(yaml.safe_dump(document))
    started = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        merge([str(config), str(target.with_suffix("")), "--safe-serialization"], standalone_mode=False)
    seconds = time.perf_counter() - started
    return seconds, seconds


PEERS = {"fusionbench": fusionbench, "mergekit": mergekit}

if __name__ == "__main__":
    main()
