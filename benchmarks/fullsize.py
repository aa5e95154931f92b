"""True sizes on whatever device is there: load, merge, encode, calibrate, against what the machine could do at best.

    python benchmarks/fullsize.py                       # ViT-B/32 and ViT-L/14, eight experts each
    python benchmarks/fullsize.py --quick               # ViT-B/32 with two calibrator widths, fewer images and steps
    python benchmarks/fullsize.py --models ViT-B-16 ViT-H-14 --experts 4 --folder /data/big
    python benchmarks/fullsize.py --models ViT-L-14 --experts 20 --merges ties
    python benchmarks/fullsize.py --calibrators         # only the calibrators, for every width: d = 512, 768, 1024

The weights are made (random), which costs the same as trained ones. Each line names its floor, measured in the same
run: reading the checkpoints from files, copying memory, multiplying matrices. Every model is run in a process of its
own; checkpoints lie in a temporary folder that is removed at the end. Where disk or memory do not hold eight experts,
fewer are made, and the output says so. Calibrators inside the encoder are measured where there is an accelerator.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.made import Made
from benchmarks.merging import PlainContext, peak_memory
from engine.calibration.coefficients import LinearMerge
from engine.calibration.deep_training import fit_deep
from engine.catalog import CALIBRATORS, params_of
from engine.features import Batches, choose_device, device_class, encode
from engine.manifest import Preprocess
from engine.merging.apply import merge
from engine.recipe import MethodCall
from engine.types import Static
from engine.weights import LazyTaskVectors, Memory, check_same_architecture, encoder_part, open_weights, write_weights
from engine.zoo.encoders.architecture import tower_size
from engine.zoo.encoders.backbone import load_encoder, outline
from engine.zoo.images.config import OPENAI_MEAN, OPENAI_STD

MODELS = ("ViT-B-32", "ViT-L-14")
METHODS = ("task_arithmetic", "ties", "lwptv+task_arithmetic", "emr")
WIDTHS = {"ViT-B-32": 512, "ViT-B-16": 512, "ViT-L-14": 768, "ViT-H-14": 1024}
SPARE = 2 * 2**30  # bytes of the disk and of memory that are left alone
ENCODING_SECONDS = {"cpu": 20.0, "quick": 5.0}  # that the features of a model may take, as far as can be foreseen
SHARE_OF_RATE = 0.5  # of the matrix rate that an encoder reaches, for foreseeing that
BLOCK = 2**26  # bytes that are copied
TASKS, ROWS = 8, 500
DEEP = (  # calibrators inside the encoder, which are measured where there is an accelerator
    ("interv_merge", {"rank": 1}),
    ("interv_merge", {"rank": 1, "coefficients": "layer"}),
    ("surgery_v2", {"rank": 16}),
)
DEEP_IMAGES, DEEP_BATCH = 64, 16  # of a task, and of a task's update
SCALING = 0.3
Line = tuple[str, float, str, float | None, str]  # work, seconds, rate, ratio to the floor, floor


def fitting(wanted: int, size: int, disk: int, memory: int) -> tuple[int, str]:
    """Return the number of experts that fit, and why not more; '' where all of them do.

    Args:
        wanted: experts asked for.
        size: bytes of one model.
        disk: bytes that are free; base, experts and a merged model are written.
        memory: bytes that are free; EMR, which needs most, takes at most 2.5 models and an eighth of one an expert.
    """
    by_disk = int((disk - SPARE) // size) - 2
    by_memory = int(8 * ((memory - SPARE) / size - 2.5))
    experts = min(wanted, by_disk, by_memory)
    if experts < 1:
        raise SystemExit(
            f"A model takes {size / 1e9:.1f} GB; {disk / 1e9:.1f} GB of disk and {memory / 1e9:.1f} GB of memory are "
            "free, which is too little for one expert. Free some, or give --folder on a larger disk."
        )
    if experts == wanted:
        return experts, ""
    what = f"disk: {disk / 1e9:.1f} GB" if by_disk <= by_memory else f"memory: {memory / 1e9:.1f} GB"
    return (
        experts,
        f"{experts} experts in place of {wanted}, for lack of {what} are free, a model takes {size / 1e9:.1f} GB",
    )


def make_checkpoints(folder: Path, config: dict[str, Any], experts: int) -> int:
    """Write a base and its experts.

    Returns:
        Bytes written.
    """
    shapes = {f"visual.{name}": tuple(tensor.shape) for name, tensor in outline(config).state_dict().items()}
    base = Made(shapes, 0, 0.02)
    write_weights(folder / "base.safetensors", base)
    for index in range(experts):
        write_weights(folder / f"expert{index}.safetensors", Made(shapes, index + 1, 5e-4, base))
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def forget_peak() -> None:
    """Let the highest resident memory of this process be counted anew, where the system can do that."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def timed(action: Callable[[], Any], times: int = 1) -> float:
    """Seconds of the best of some calls."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def floors(folder: Path, device: torch.device) -> dict[str, float]:
    """Bytes a second of reading files and of copying memory; operations a second of products, also on the device."""
    files = sorted(folder.glob("*.safetensors"))
    buffer = bytearray(max(path.stat().st_size for path in files))

    def read() -> None:
        for path in files:
            with path.open("rb", buffering=0) as stream:
                view = memoryview(buffer)
                while count := stream.readinto(view):
                    view = view[count:]

    source = torch.ones(BLOCK // 4)
    target = torch.empty_like(source)
    seconds = timed(read, 2)
    found = {"read": sum(path.stat().st_size for path in files) / seconds, "read_seconds": seconds}
    found["copy"] = 2 * BLOCK / timed(lambda: target.copy_(source), 5)
    dtype = torch.float32 if device.type != "cuda" else getattr(torch, device_class(device).split("/")[1])
    side = 2048 if device.type == "cpu" else 8192
    one, other = (torch.ones(side, side, device=device, dtype=dtype) for _ in range(2))

    def product() -> None:
        (one @ other)[0, 0].item()

    product()
    found["matmul"] = 2 * side**3 / timed(product, 3)
    return found


def merge_lines(folder: Path, floor: dict[str, float], methods: Sequence[str] = METHODS) -> Iterator[Line]:
    """Opening and checking the checkpoints, then every method from files to a file."""
    files = sorted(folder.glob("expert*.safetensors"))

    def load() -> tuple[Any, dict[str, Any]]:
        base = encoder_part(open_weights(folder / "base.safetensors"))
        experts = {path.stem: encoder_part(open_weights(path)) for path in files}
        for name, weights in experts.items():
            check_same_architecture(base, weights, name)
        return base, experts

    yield ("open and compare headers", timed(load), f"{len(files) + 1} files", None, "")
    target = folder / "merged.out"
    for what in methods:
        base, experts = load()
        *before, method = what.split("+")

        def run(base: Any = base, experts: Any = experts, before: list[str] = before, method: str = method) -> None:
            calls = [MethodCall(method=name) for name in before]
            context = PlainContext(tuple(experts))
            merged = merge(base, LazyTaskVectors(base, experts), calls, MethodCall(method=method), context)
            write_weights(target, merged.weights if isinstance(merged, Static) else Memory(merged.parts))

        forget_peak()
        seconds = timed(run)
        target.unlink()
        rate = f"peak {peak_memory():.2f} GiB"
        yield (f"merge: {what}", seconds, rate, seconds / floor["read_seconds"], "reading all files once")


def image_count(config: dict[str, Any], floor: dict[str, float], device: torch.device, quick: bool) -> int:
    """Return the number of images to encode: as many as a CPU encodes in some seconds, thousands on an accelerator."""
    if device.type != "cpu":
        return 1024 if quick else 4096
    seconds = ENCODING_SECONDS["quick" if quick else "cpu"]
    return int(min(256, max(4, seconds * SHARE_OF_RATE * floor["matmul"] / tower_size(config).flops)))


def feature_lines(folder: Path, config: dict[str, Any], floor: dict[str, float], quick: bool) -> Iterator[Line]:
    """Loading an encoder, and images a second through it."""
    device = choose_device()
    count = image_count(config, floor, device, quick)
    started = time.perf_counter()
    encoder = load_encoder(config, encoder_part(open_weights(folder / "base.safetensors"))).to(device)
    seconds = time.perf_counter() - started
    size = (folder / "base.safetensors").stat().st_size
    yield ("load an encoder", seconds, f"{size / seconds / 1e9:.2f} GB/s", seconds * floor["read"] / size, "reading it")
    side = config["vision_cfg"]["image_size"]
    preprocess = Preprocess(size=side, mean=OPENAI_MEAN, std=OPENAI_STD)
    images = np.random.default_rng(0).integers(0, 255, (count, side, side, 3), dtype=np.uint8)
    batches = Batches()
    warm = images[: 4 if device.type == "cpu" else 512]
    encode(encoder, warm, preprocess, device, lambda fraction, message="": None, batches)
    seconds = timed(lambda: encode(encoder, images, preprocess, device, lambda f, m="": None, batches))
    ideal = count * tower_size(config).flops / floor["matmul"]
    rate = f"{count / seconds:.1f} images/s, batches of {batches.size}"
    yield (f"features of {count} images", seconds, rate, seconds / ideal, "its products at the matrix rate")


def calibrator_lines(width: int, steps: int) -> Iterator[Line]:
    """Eight tasks' calibrators on made features, one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    merged = {f"task{i}": torch.randn(ROWS, width, generator=generator) for i in range(TASKS)}
    expert = {task: rows + 0.3 * torch.randn(rows.shape, generator=generator) for task, rows in merged.items()}
    for method, given in (("surgery", {"rank": 16}), ("prob_surgery", {"hidden": 128})):
        row = CALIBRATORS[method]
        config = params_of(row, {**given, "steps": steps})
        calibrator = row.load()()
        seconds = timed(lambda c=calibrator, p=config: c.fit(merged, expert, p, 0))
        name = f"{row.title}, {TASKS} tasks, d = {width}, {steps} steps"
        yield (name, seconds, f"{1000 * seconds / steps:.2f} ms a step", None, "")
    torch.set_num_threads(threads)


def linear_merge(folder: Path, device: torch.device) -> LinearMerge:
    """Return Task Arithmetic of all experts, on the device."""
    base = encoder_part(open_weights(folder / "base.safetensors"))
    experts = {path.stem: encoder_part(open_weights(path)) for path in sorted(folder.glob("expert*.safetensors"))}
    vectors = LazyTaskVectors(base, experts)
    return LinearMerge(
        {name.removeprefix("visual."): base.tensor(name).float().to(device) for name in base.names},
        {name.removeprefix("visual."): vectors.stack(name).to(device) for name in vectors.names},
        torch.full((1, len(experts)), SCALING, device=device),
        vectors.experts,
    )


def deep_lines(
    folder: Path, config: dict[str, Any], floor: dict[str, float], steps: int, device: torch.device
) -> Iterator[Line]:
    """Calibrators inside the merged encoder: what the experts do there, then updates of all tasks together."""
    side = config["vision_cfg"]["image_size"]
    merge, generator = linear_merge(folder, device), torch.Generator().manual_seed(0)
    images = {name: torch.randn((DEEP_IMAGES, 3, side, side), generator=generator) for name in merge.experts}
    encoder = load_encoder(config, encoder_part(open_weights(folder / "base.safetensors"))).to(device)
    encoder.load_state_dict(merge.weights(merge.start))
    flops = len(images) * DEEP_BATCH * tower_size(config).flops
    for method, given in DEEP:
        row, teachers = CALIBRATORS[method], {}
        params = params_of(row, {**given, "steps": steps, "batch_size": DEEP_BATCH})
        calibrator, joint = row.load()(), row.learned(given)

        def teach(calibrator: Any = calibrator, params: Any = params, teachers: dict[str, Any] = teachers) -> None:
            for name in images:
                weights = encoder_part(open_weights(folder / f"{name}.safetensors"))
                teachers[name] = calibrator.teach(load_encoder(config, weights).to(device), images[name], params)

        def fit(params: Any, calibrator: Any = calibrator, teachers: Any = teachers, joint: bool = joint) -> float:
            given = merge if joint else None
            return fit_deep(calibrator, encoder, images, teachers, params, 0, merge=given).seconds

        name = f"{row.title}{', λ learned' if joint else ''}"
        seconds = timed(teach)
        rate = f"{len(images) * DEEP_IMAGES / seconds:.0f} images/s"
        yield (f"{name}: {len(images)} experts' features", seconds, rate, None, "")
        fit(params.model_copy(update={"steps": 2}))
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds = fit(params)
        peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else peak_memory()
        rate = f"{1000 * seconds / steps:.0f} ms a step, peak {peak:.1f} GiB"
        ideal = 3 * steps * flops / floor["matmul"]
        yield (f"{name}, {steps} steps", seconds, rate, seconds / ideal, "products there and back at the matrix rate")


def run_one(name: str, folder: Path, wanted: int, quick: bool, merges: Sequence[str]) -> None:
    """Measure one architecture in this process; prints lines as JSON."""
    import open_clip

    config = open_clip.get_model_config(name)
    size, memory = tower_size(config).bytes, psutil.virtual_memory().available
    experts, lack = fitting(wanted, size, shutil.disk_usage(folder).free, memory)
    written = make_checkpoints(folder, config, experts)
    floor = floors(folder, choose_device())
    facts = {"model": name, "written": written, "experts": experts, "lack": lack, **floor}
    facts["cached"] = written < memory
    print(json.dumps({"floor": facts}), flush=True)
    parts = [merge_lines(folder, floor, merges or METHODS)]
    if not merges:
        parts += [
            feature_lines(folder, config, floor, quick),
            calibrator_lines(config["embed_dim"], 100 if quick else 500),
        ]
        if (device := choose_device()).type != "cpu":
            parts.append(deep_lines(folder, config, floor, 10 if quick else 50, device))
    for lines in parts:
        for line in lines:
            print(json.dumps({"line": line}), flush=True)


def show(name: str, arguments: argparse.Namespace) -> None:
    """Run one architecture in a process of its own, with a folder of its own, and print its part of the table."""
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        command = [sys.executable, __file__, "--one", name, "--folder", folder, "--experts", str(arguments.experts)]
        command += ["--quick"] if arguments.quick else []
        command += ["--merges", *arguments.merges] if arguments.merges else []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for text in process.stdout:
                part = json.loads(text)
                if "floor" in part:
                    show_floor(name, part["floor"])
                else:
                    show_line(part["line"])
        if process.returncode:
            raise SystemExit(f"{name} failed; see above.")


def show_floor(name: str, floor: dict[str, Any]) -> None:
    """Print what was made, and the floors."""
    lack = f" ({floor['lack']})" if floor["lack"] else ""
    place = "which memory holds" if floor["cached"] else "more than memory holds, so reading is the disk's"
    print(
        f"\n{name}, {floor['experts']} experts{lack}, {floor['written'] / 1e9:.2f} GB of checkpoints, {place}.\n"
        f"Floors: files {floor['read'] / 1e9:.2f} GB/s ({floor['read_seconds']:.2f} s for all), "
        f"copying {floor['copy'] / 1e9:.1f} GB/s, products {floor['matmul'] / 1e9:,.0f} GFLOP/s"
    )
    print(f"{'work':<48}{'seconds':>9}  {'rate':<34}{'x floor':>8}  floor", flush=True)


def show_line(line: Line) -> None:
    """Print one line of the table."""
    work, seconds, rate, ratio, what = line
    text = "" if ratio is None else f"{ratio:.1f}"
    print(f"{work:<48}{seconds:>9.2f}  {rate:<34}{text:>8}  {what}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=None, help=f"open_clip names; default {' '.join(MODELS)}")
    parser.add_argument("--experts", type=int, default=8, help="at most so many; fewer where they do not fit")
    parser.add_argument("--calibrators", action="store_true", help="only the calibrators, for every width")
    parser.add_argument("--merges", nargs="+", default=(), help="only these, such as ties, and nothing but merging")
    parser.add_argument("--folder", type=Path, default=None, help="where checkpoints go for the time of the run")
    parser.add_argument(
        "--quick", action="store_true", help="fewer images and steps; ViT-B/32 alone where no --models are given"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        run_one(arguments.one, arguments.folder, arguments.experts, arguments.quick, arguments.merges)
        return
    device = choose_device()
    title = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} ({platform.machine()})"
    print(
        f"{title}, {device_class(device)}; {os.cpu_count()} cores, {torch.get_num_threads()} threads, "
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB; Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in ("torch", "open_clip_torch", "numpy"))
    )
    if arguments.calibrators:
        for width in sorted(set(WIDTHS.values())):
            for line in calibrator_lines(width, 100 if arguments.quick else 500):
                show_line(line)
        return
    for name in arguments.models or (MODELS[:1] if arguments.quick else MODELS):
        show(name, arguments)


if __name__ == "__main__":
    main()
