"""Writing an import as a zoo folder: tensor by tensor, into a temporary folder that is renamed when it is whole."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from ...catalog.datasets import find_dataset
from ...errors import CheckpointError, ZooError
from ...manifest import read_manifest
from ...store.outputs import new_folder
from ...types import Progress, Weights
from ...weights import Memory, write_weights
from .names import title_of
from .request import REMOTE, ImportRequest
from .sources import Joined
from .survey import Row, Survey, survey

OPENAI_PREPROCESS = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
RESAMPLING = {"bilinear": 2, "bicubic": 3}  # PIL's numbers
RECORD = "import.json"


def import_zoo(request: ImportRequest, progress: Progress) -> dict[str, Any]:
    """Convert checkpoints to a zoo folder.

    Args:
        request: what to convert, and where to.
        progress: told how far it is; what it raises stops the import and leaves nothing behind.

    Returns:
        What was recognised, left out and warned about, as :meth:`.survey.Survey.to_json` gives it.

    Raises:
        ZooError: everything that is wrong, one line each; nothing was written then.
        CheckpointError: a value that is not finite.
    """
    found = survey(request, lambda fraction, message="": progress(0.05 * fraction, message))
    if found.faults:
        raise ZooError("\n".join(found.faults))
    with new_folder(request.folder) as folder:
        _write_models(found, folder, progress)
        document = _document(found, folder)
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
        (folder / "zoo.yaml").write_text(text, "utf-8")
        read_manifest(folder)
        (folder / RECORD).write_text(json.dumps(found.to_json(), indent=1, ensure_ascii=False), "utf-8")
    progress(1.0, "Done")
    return found.to_json()


def read_record(request: ImportRequest) -> dict[str, Any] | None:
    """The summary of this very wish where it has been carried out already; None where it has not."""
    try:
        record = json.loads((request.folder / RECORD).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("token") == request.token else None


def _write_models(found: Survey, folder: Path, progress: Progress) -> None:
    (folder / "experts").mkdir()
    total = max(found.needed, 1)
    done = 0
    dtype = None if found.request.dtype == "keep" else getattr(torch, found.request.dtype)
    for row in found.rows:
        if row.role == "head":
            continue
        weights = found.models[row.name]
        if row.role == "base" and found.text is not None:
            both = {**dict.fromkeys(weights.names, weights), **dict.fromkeys(found.text.names, found.text)}
            weights = Joined(both)
        checked = Checked(weights, f"Expert '{row.name}'" if row.role == "expert" else "The base")

        def report(fraction: float, message: str = "", row: Row = row, done: int = done) -> None:
            progress(0.05 + 0.9 * (done + fraction * row.bytes) / total, f"{row.name}: {message}")

        metadata = {"converted_from": row.layout, "file": Path(row.path).name}
        write_weights(folder / file_of(row), checked, dtype, report, metadata)
        done += row.bytes
    if found.heads:
        heads = {task: head.rows for task, head in found.heads.items()}
        if found.log_scale is not None:
            heads["logit_scale"] = torch.tensor(found.log_scale)
        write_weights(folder / "heads.safetensors", Memory(heads))


def file_of(row: Row) -> str:
    """Where a model lies in the zoo folder."""
    return "base.safetensors" if row.role == "base" else f"experts/{row.name}.safetensors"


@dataclass
class Checked:
    """Weights that refuse to hand out a value that is not finite."""

    weights: Weights
    owner: str

    @property
    def names(self) -> tuple[str, ...]:
        """Tensor names."""
        return self.weights.names

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor."""
        return self.weights.shape(name)

    def dtype(self, name: str) -> torch.dtype:
        """Stored dtype of one tensor."""
        return self.weights.dtype(name)

    def tensor(self, name: str) -> Tensor:
        """One tensor.

        Raises:
            CheckpointError: it holds NaN or an infinity.
        """
        tensor = self.weights.tensor(name)
        if tensor.is_floating_point() and not tensor.sum(dtype=torch.float64).isfinite():
            missing, infinite = int(tensor.isnan().sum()), int(tensor.isinf().sum())
            if missing or infinite:
                raise CheckpointError(
                    f"{self.owner} has {missing:,} NaN and {infinite:,} infinite values of {tensor.numel():,} in "
                    f"{name}. Its training diverged or the file is damaged; choose another checkpoint."
                )
        return tensor


def _document(found: Survey, folder: Path) -> dict[str, Any]:
    """zoo.yaml."""
    request = found.request
    document: dict[str, Any] = {"format": 1, "name": request.name, "title": request.title}
    document["backbone"] = _backbone(found, folder)
    experts = [row for row in found.rows if row.role == "expert"]
    document["experts"] = [
        {
            "name": row.name,
            "task": row.task,
            "weights": file_of(row),
            "source": f"{row.layout}: {'/'.join(Path(row.path).parts[-2:])}",
        }
        for row in experts
    ]
    tasks = _tasks(found, [row.task for row in experts], folder)
    if tasks:
        document["tasks"] = tasks
    if found.heads:
        document["heads"] = "heads.safetensors"
    return document


def _backbone(found: Survey, folder: Path) -> dict[str, Any]:
    architecture = found.architecture
    if architecture is None or found.base is None:
        raise ZooError("The base was not recognised.")
    name = architecture.name
    if not name:
        name = "config.json"
        (folder / name).write_text(json.dumps(architecture.config, indent=1), "utf-8")
    backbone = {"architecture": name, "weights": "base.safetensors"}
    backbone["quick_gelu"] = bool(architecture.config.get("quick_gelu", False))
    preprocess = _preprocess(found.base.preprocessor, architecture.config["vision_cfg"]["image_size"])
    return {**backbone, **({"preprocess": preprocess} if preprocess else {})}


def _preprocess(config: dict[str, Any], size: int) -> dict[str, Any]:
    """Preprocessing of a Hugging Face folder where it is not OpenAI's, which is the default."""
    mean, std = config.get("image_mean"), config.get("image_std")
    if not isinstance(mean, list) or not isinstance(std, list) or len(mean) != 3 or len(std) != 3:
        return {}
    interpolation = "bilinear" if config.get("resample", 3) == RESAMPLING["bilinear"] else "bicubic"
    if (tuple(mean), tuple(std)) == OPENAI_PREPROCESS and interpolation == "bicubic":
        return {}
    return {"size": size, "mean": mean, "std": std, "interpolation": interpolation, "resize_mode": "shortest"}


def _tasks(found: Survey, of_experts: list[str], folder: Path) -> list[dict[str, Any]]:
    """Task entries: where there is a head or data, or where the catalogue knows every task's classes."""
    data = found.request.data
    if not found.heads and not data and not all(map(find_dataset, of_experts)):
        return []
    names = list(dict.fromkeys([*of_experts, *found.heads, *data]))
    return [_task(found, name, name in of_experts, _bring(data.get(name), name, folder)) for name in names]


def _task(found: Survey, name: str, trained: bool, data: str | None) -> dict[str, Any]:
    head, known = found.heads.get(name), find_dataset(name)
    entry: dict[str, Any] = {"name": name, "domain": "in" if trained else "out"}
    if data:
        entry["data"] = data
    if known and (head is None or len(head.rows) == known.count):
        return {**entry, "dataset": known.name}
    count = len(head.rows) if head else 0
    return {**entry, "title": title_of(name), "classes": [f"class {number}" for number in range(max(count, 2))]}


def _bring(path: str | None, task: str, folder: Path) -> str | None:
    """Copy a task's data into the zoo; sources elsewhere are only named."""
    if path is None or path.startswith(REMOTE):
        return path
    source = Path(path).expanduser()
    target = Path("data") / (f"{task}{source.suffix}" if source.is_file() else task)
    try:
        (folder / "data").mkdir(exist_ok=True)
        if source.is_symlink() or any(path.is_symlink() for path in source.rglob("*")):
            raise ZooError(f"The data of '{task}' hold a symbolic link, which is not followed. Copy the files there.")
        if source.is_dir():
            shutil.copytree(source, folder / target, symlinks=False)
        else:
            shutil.copyfile(source, folder / target)
    except (OSError, shutil.Error) as error:
        reason = getattr(error, "strerror", None) or "a file in it cannot be read"
        raise ZooError(f"The data of '{task}' cannot be copied from {source.name}: {reason}.") from error
    return target.as_posix()
