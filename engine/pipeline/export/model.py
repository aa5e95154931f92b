"""A run's merged weights as a folder that others can use: open_clip or Hugging Face, with card and provenance."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ...errors import EngineError, StoreError
from ...manifest import Preprocess
from ...report import Report, read_report
from ...store.outputs import check_folder, new_folder
from ...types import Progress, Weights
from ...weights import Memory, encoder_part, open_weights, write_weights
from ...weights.huggingface import ToHuggingFace, huggingface_config
from ...zoo.encoders.heads import CLASSIFIERS, HEADS_KEY, MADE_OTHERWISE, read_heads
from ...zoo.folder import Zoo
from ...zoo.importing.sources import Joined
from ...zoo.metadata import describe_model, header_text, model_document, read_document
from ...zoo.modalities import load, of_config
from ..run.merging import load_merged
from ..run.receipt import Origin, header_of, made_by, origins_of, receipt_text
from .adapter import write_adapter
from .card import licence, model_card

LAYOUTS = {
    "hf": "model.safetensors",
    "open_clip": "open_clip_model.safetensors",
    "peft": "adapter_model.safetensors",
}
RESAMPLE = {"bilinear": 2, "bicubic": 3}  # PIL's numbers
Digest = Callable[[Path], str]


def export_model(
    run: Path,
    out: Path,
    layout: str,
    digest: Digest,
    *,
    task: str | None = None,
    rank: int | None = None,
    progress: Progress | None = None,
) -> dict[str, str]:
    """Write merged weights as a folder: weights, configs, heads, calibrators, recipe, report, model card.

    Args:
        run: the folder of a finished run.
        out: the folder to make.
        layout: a row of LAYOUTS: ``hf`` (CLIPVisionModelWithProjection), ``open_clip``, or ``peft`` (an adapter).
        digest: sha256 of a file.
        task: whose weights to write, where the merge makes other weights for every task; of a text model the expert's
            task whose classifier goes with it.
        rank: of an adapter's layers; None takes what keeps 99 % of each layer's squared norm.
        progress: told how far it is.

    Returns:
        File → what it is.

    Raises:
        EngineError: the run left no such weights, the folder exists, or the model has no place in the layout.
    """
    check_folder(out)
    report = read_report(run)
    if report.recipe.forward == "linearised":
        raise EngineError(
            "This run evaluates its merge by a derivative around the base, which the written format would not say: the "
            "same weights give other features there. Export a run with `forward: standard`."
        )
    zoo = _zoo(report)
    if zoo is not None and zoo.modality.exporter:
        return load(zoo.modality.exporter)(run, out, layout, digest, zoo, task, progress)
    weights = merged_weights(run, zoo, task)
    config, preprocess = _described(run, zoo)
    files = {LAYOUTS[layout]: "the merged image encoder" + (f", for the task {task}" if task else "")}
    with new_folder(out) as folder:
        if layout == "hf":
            files |= _write_huggingface(folder, weights, config, preprocess, progress)
        elif layout == "peft":
            files = _write_peft(folder, weights, zoo, rank)
        else:
            files |= _write_open_clip(folder, weights, zoo, config, preprocess, progress)
        return write_beside(folder, run, zoo, layout, digest, files, task)


def write_beside(
    folder: Path,
    run: Path,
    zoo: Zoo | None,
    layout: str,
    digest: Digest,
    files: Mapping[str, str],
    task: str | None = None,
) -> dict[str, str]:
    """Write heads, recipe, report, calibrators, receipt and card beside exported weights.

    Args:
        folder: that holds the weights.
        run: the folder of the finished run.
        zoo: that it was merged from, None where it is gone.
        layout: a row of the cards' layouts.
        digest: sha256 of a file.
        files: what was written already → what it is.
        task: whose weights they are, where the merge makes others for every task.

    Returns:
        File → what it is, of all of them.
    """
    report = read_report(run)
    found = {**files, **_write_heads(folder, zoo), **_copy(run, folder)}
    if (text := run_receipt(run, digest)) is not None:
        (folder / "receipt.json").write_text(text, "utf-8")
        found["receipt.json"] = "of every tensor, what came from which expert"
    card = model_card(report, _origins(report, zoo, digest), layout, found, task)
    (folder / "README.md").write_text(card, "utf-8")
    return {**found, "README.md": "the model card"}


def _zoo(report: Report) -> Zoo | None:
    """Return the zoo of the run, None where it is gone or is another one by now."""
    try:
        return Zoo.open(report.recipe.zoo)
    except EngineError:
        return None


def merged_weights(run: Path, zoo: Zoo | None, task: str | None) -> Weights:
    """Return the merged weights that a run left.

    Args:
        run: the folder of a finished run.
        zoo: that it was merged from, None where it is gone.
        task: whose weights, where there are others for every task.

    Raises:
        EngineError: there are none, or not for this task.
    """
    file = run / "merged.safetensors"
    if file.is_file():
        if task is not None:
            raise EngineError("This merge makes one model for all tasks; leave out --task.")
        return encoder_part(open_weights(file))
    if not (run / "merged" / "merged.json").is_file():
        raise StoreError("The run left no merged weights. An example keeps only its report; run its recipe.")
    if zoo is None:
        raise StoreError("This merged model is rebuilt from its zoo's base, and the zoo is no longer there.")
    if json.loads((run / "merged" / "merged.json").read_text("utf-8")).get("kind") == "per_sample":
        raise EngineError(
            "This merge mixes its weights for every image, which no other program's format holds. Use the run's folder "
            "'merged' with mergelens.load_merged."
        )
    if task is None:
        raise EngineError("This merge makes other weights for every task; name one with --task.")
    return load_merged(run / "merged", zoo.weights("base"), task)


def _described(run: Path, zoo: Zoo | None) -> tuple[dict[str, Any], Any]:
    """Return architecture and preparation of samples from the weights' header, else from their zoo."""
    file = run / "merged.safetensors"
    known = read_document(open_weights(file)) if file.is_file() else {}
    if not {"architecture", "preprocess"} <= set(known):
        if zoo is None:
            raise StoreError("The weights do not say which architecture they are of, and their zoo is no longer there.")
        known = describe_model(zoo)
    preparation = of_config(known["architecture"]).preparation
    return known["architecture"], preparation.model_validate(known["preprocess"])


def _write_huggingface(
    folder: Path, weights: Weights, config: dict[str, Any], preprocess: Preprocess, progress: Progress | None
) -> dict[str, str]:
    view = ToHuggingFace(weights)
    width = weights.shape("visual.transformer.resblocks.0.mlp.c_fc.weight")[0]
    write_weights(folder / LAYOUTS["hf"], view, progress=progress, metadata={"format": "pt"})
    _write_json(folder / "config.json", huggingface_config(config, width))
    size = preprocess.size
    shortest = preprocess.resize_mode == "shortest"
    _write_json(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": "CLIPImageProcessor",
            "do_convert_rgb": True,
            "do_resize": True,
            "size": {"shortest_edge": size} if shortest else {"height": size, "width": size},
            "resample": RESAMPLE[preprocess.interpolation],
            "do_center_crop": True,
            "crop_size": {"height": size, "width": size},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(preprocess.mean),
            "image_std": list(preprocess.std),
        },
    )
    return {"config.json": "its architecture", "preprocessor_config.json": "how images are prepared"}


def _write_peft(folder: Path, weights: Weights, zoo: Zoo | None, rank: int | None) -> dict[str, str]:
    if zoo is None:
        raise StoreError("An adapter is the difference from the zoo's base, and the zoo is no longer there.")
    kept = write_adapter(folder, zoo.weights("base"), weights, rank)
    said = f"the merged task vector as a LoRA adapter: {kept.sentence}"
    return {"adapter_model.safetensors": said, "adapter_config.json": "its ranks and modules"}


def _write_open_clip(
    folder: Path,
    weights: Weights,
    zoo: Zoo | None,
    config: dict[str, Any],
    preprocess: Preprocess,
    progress: Progress | None,
) -> dict[str, str]:
    """As on the hub: a complete CLIP where the base brings its text encoder, which merging leaves as it is."""
    prepare = preprocess.model_dump(mode="json")
    metadata = header_text(model_document(config, prepare))
    text = _text(zoo, config)
    whole = Joined({**dict.fromkeys(weights.names, weights), **dict.fromkeys(text.names, text)}) if text else weights
    write_weights(folder / LAYOUTS["open_clip"], whole, progress=progress, metadata=metadata)
    _write_json(folder / "open_clip_config.json", {"model_cfg": config, "preprocess_cfg": prepare})
    said = "with the base's text encoder" if text else "the image side alone: the zoo's base has no text encoder"
    return {"open_clip_config.json": f"its architecture, and how images are prepared; {said}"}


def _text(zoo: Zoo | None, config: dict[str, Any]) -> Weights | None:
    """The base's text encoder, where it is whole."""
    if zoo is None or "text_cfg" not in config:
        return None
    base = open_weights(zoo.weights_path("base"))
    names = [name for name in base.names if not name.startswith("visual.")]
    whole = "token_embedding.weight" in names and any(name.startswith("transformer.") for name in names)
    return Joined(dict.fromkeys(names, base)) if whole else None


def export_file(run: Path, out: Path, digest: Digest) -> None:
    """Write merged weights as one file whose header says everything: model, recipe, origins, licence.

    Args:
        run: the folder of a finished run.
        out: the file to make.
        digest: sha256 of a file.

    Raises:
        EngineError: the run left no weights that one file can hold.
    """
    report = read_report(run)
    zoo = _zoo(report)
    config, preprocess = _described(run, zoo)
    origins = _origins(report, zoo, digest)
    metadata = header_text(model_document(config, preprocess.model_dump(mode="json")))
    metadata |= {"format": "pt", **header_of(report.recipe, origins), "licence": licence(origins)}
    write_weights(out, merged_weights(run, zoo, None), metadata=metadata | {"identity": report.identity})


def run_receipt(run: Path, digest: Digest) -> str | None:
    """Return the receipt of a run's merge as text; None where the zoo that it was made of is gone.

    Args:
        run: the folder of a finished run.
        digest: sha256 of a file.

    Raises:
        StoreError: the run left no merged weights.
    """
    report = read_report(run)
    zoo = _zoo(report)
    if zoo is None or not _origins(report, zoo, digest):
        return None
    merged = None if report.merged.kind != "static" else merged_weights(run, zoo, None)
    return receipt_text(made_by(zoo, report.recipe, _origins(report, zoo, digest)), merged)


def _write_heads(folder: Path, zoo: Zoo | None) -> dict[str, str]:
    """Write the heads of all tasks that have one as a zoo keeps them: unit rows, and the logarithm of the scale."""
    if zoo is None or not zoo.manifest.heads:
        return {}
    file = open_weights(zoo.path(zoo.manifest.heads))
    stored = set(file.names)
    if getattr(file, "metadata", {}).get(HEADS_KEY) == CLASSIFIERS:
        shutil.copyfile(zoo.path(zoo.manifest.heads), folder / "heads.safetensors")
        kept = {task.name: list(task.classes) for task in zoo.manifest.tasks if task.name in stored}
        _write_json(folder / "classes.json", kept)
        return {"heads.safetensors": "every expert's own classifier", "classes.json": "class names, in their order"}
    heads, _ = read_heads(zoo.folder, zoo.manifest, [t.name for t in zoo.manifest.tasks if t.name in stored])
    if not heads:
        return {}
    scale = math.log(next(iter(heads.values())).scale)
    tensors = {task: head.weight for task, head in heads.items()} | {"logit_scale": torch.tensor(scale)}
    metadata = {name: text for name, text in getattr(file, "metadata", {}).items() if name == HEADS_KEY}
    write_weights(folder / "heads.safetensors", Memory(tensors), metadata=metadata)
    classes = {task: list(zoo.manifest.task_table[task].classes) for task in heads}
    _write_json(folder / "classes.json", classes)
    kind = str(getattr(file, "metadata", {}).get(HEADS_KEY, ""))
    made = f"heads ({MADE_OTHERWISE[kind]}, not zero-shot)" if kind in MADE_OTHERWISE else "zero-shot heads"
    said = f"{made}: (classes, dim) unit rows for each task, and logit_scale (a logarithm)"
    return {"heads.safetensors": said, "classes.json": "class names of the heads, in their order"}


def _copy(run: Path, folder: Path) -> dict[str, str]:
    files = {"recipe.yaml": "how it was made, to be run again", "report.json": "everything that was measured"}
    for name in files:
        shutil.copyfile(run / name, folder / name)
    for source in sorted((run / "calibrators").glob("*.safetensors")):
        (folder / "calibrators").mkdir(exist_ok=True)
        shutil.copyfile(source, folder / "calibrators" / source.name)
        files[f"calibrators/{source.name}"] = "a calibrator that repairs the features"
    for source in sorted((run / "calibrators").glob("*/merged.safetensors")):
        place = f"calibrators/{source.parent.name}"
        (folder / place).mkdir(exist_ok=True)
        shutil.copyfile(source, folder / place / source.name)
        files[f"{place}/{source.name}"] = "the model that this calibrator acts in; it learned merging coefficients"
    return files


def _origins(report: Report, zoo: Zoo | None, digest: Digest) -> list[Origin]:
    """Base and experts with the digests of their files."""
    if zoo is None or zoo.manifest.name != report.zoo.name:
        return []
    try:
        return origins_of(zoo, report.recipe, digest)
    except EngineError:
        return []


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8")
