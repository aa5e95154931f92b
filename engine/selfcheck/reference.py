"""Folders of reference numbers: an index with inputs and outputs, or one JSON file for each reference."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file
from torch import Tensor

from ..errors import ReferenceFolderError
from ..weights import LazyTaskVectors, Memory
from .measure import Tolerance

PRECISIONS = ("float64", "float32")
TOY = "toy"
# Where a file of calibrators states no tolerance for a precision.
ASSUMED = {"float64": Tolerance(1e-9, 1e-12), "float32": Tolerance(1e-4, 1e-6)}
# Exact numbers in float64 are known to float32 only up to its rounding.
EXACT = {"float64": Tolerance(0.0, 0.0), "float32": Tolerance(1e-6, 1e-6)}
TENSORS, COMPRESSED = ".safetensors", ".safetensors.xz"
# A compressed file of references must not come out larger than this, in bytes.
LARGEST = 256 * 2**20
_STATED = re.compile(r"(float64|float32)((?:\s+(?:rtol|atol)\s+[0-9.e+-]+)+)")
_NUMBER = re.compile(r"(rtol|atol)\s+([0-9.]+(?:e[+-]?\d+)?)")


class IndexedReference:
    """A folder with ``index.json``, ``inputs/`` and ``outputs/``."""

    group: str

    def __init__(self, folder: Path) -> None:
        """Read the index.

        Raises:
            ReferenceFolderError: it is missing or is not an index.
        """
        self.folder = folder
        document = read_json(folder / "index.json")
        listed = document.get("entries") if isinstance(document, dict) else None
        if not isinstance(listed, list) or not all(
            isinstance(e, dict) and isinstance(e.get("name"), str) for e in listed
        ):
            raise ReferenceFolderError(
                f"{folder / 'index.json'} has no list 'entries' of objects with a 'name'. "
                "Give a folder with an index of reference numbers."
            )
        self.entries: dict[str, dict[str, Any]] = {entry["name"]: entry for entry in listed}
        if len(self.entries) != len(listed):
            raise ReferenceFolderError(f"{folder / 'index.json'} has two entries of one name. Names must be unique.")

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the entries."""
        return tuple(self.entries)

    def tolerance(self, name: str, precision: str) -> Tolerance:
        """Return the largest error that the engine may make on an entry."""
        try:
            row = self.entries[name]["tolerance"][precision]
            return Tolerance(float(row["rtol"]), float(row["atol"]))
        except (KeyError, TypeError, ValueError):
            raise ReferenceFolderError(
                f"The entry '{name}' has no tolerance {{{precision}: {{rtol, atol}}}}."
            ) from None

    def values(self, name: str) -> dict[str, Any]:
        """Return numbers written into the index itself."""
        values = self.entries[name].get("values")
        if not isinstance(values, dict):
            raise ReferenceFolderError(f"The entry '{name}' has no 'values'.")
        return values

    def output(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of an entry."""
        return self._tensors(self.entries.get(name, {}).get("file") or f"outputs/{name}.safetensors")

    def inputs(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of a file of inputs."""
        return self._tensors(f"inputs/{name}.safetensors")

    def _tensors(self, file: Any) -> dict[str, Tensor]:
        path = self.folder / str(file)
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise ReferenceFolderError(f"'{file}' lies outside {self.folder}. Files must be inside the folder.")
        return read_tensors(path)


class MergingReference(IndexedReference):
    """Numbers of merge methods on small weights."""

    group = "merging"

    @cached_property
    def order(self) -> list[str]:
        """Return the layers in the order of the network."""
        document = read_json(self.folder / "inputs" / "tensor_order.json")
        order = document.get("tensor_order") if isinstance(document, dict) else None
        if not isinstance(order, list):
            raise ReferenceFolderError(f"{self.folder / 'inputs/tensor_order.json'} has no list 'tensor_order'.")
        return order

    @cached_property
    def experts(self) -> tuple[str, ...]:
        """Return the names of the experts, by number."""
        files = (self.folder / "inputs").glob(f"toy_expert*{TENSORS}*")
        found = {path.name.partition(".")[0].removeprefix("toy_") for path in files}
        if not found:
            raise ReferenceFolderError(f"{self.folder / 'inputs'} has no files toy_expert0.safetensors, ….")
        return tuple(sorted(found, key=lambda name: (len(name), name)))

    def model(self, name: str, kind: str = TOY) -> Memory:
        """Return one of the small models, its tensors in the order of the network, text-side ones first."""
        return self._models(f"{kind}_{name}")

    def vectors(
        self,
        precision: str,
        experts: Sequence[int] | None = None,
        kind: str = TOY,
        weights: Sequence[float] | None = None,
    ) -> tuple[Memory, LazyTaskVectors]:
        """Return the base and the task vectors of some experts, in a compute dtype."""
        chosen = self.experts if experts is None else [self.experts[index] for index in experts]
        models = {name: self.model(name, kind) for name in chosen}
        base = self.model("pretrained", kind)
        return base, LazyTaskVectors(base, models, weights=weights, dtype=getattr(torch, precision))

    @cached_property
    def _models(self) -> Any:
        @cache
        def load(name: str) -> Memory:
            tensors = self.inputs(name)
            order = [layer for layer in self.order if layer in tensors]
            return Memory({layer: tensors[layer] for layer in [*(n for n in tensors if n not in order), *order]})

        return load


class PremergingReference(IndexedReference):
    """Numbers of what happens before a merge, on a small transformer and perceptrons."""

    group = "premerging"

    @cached_property
    def config(self) -> dict[str, Any]:
        """Return the configuration of the small transformer."""
        return read_json(self.folder / "inputs" / "toyvit_config.json")

    def weights(self, name: str, precision: str) -> dict[str, Tensor]:
        """Return the tensors of a file of inputs, floating-point ones in a compute dtype."""
        dtype = getattr(torch, precision)
        return {key: t.to(dtype) if t.is_floating_point() else t for key, t in self.inputs(name).items()}


class CalibratorReference:
    """A folder with NAME.json and NAME.safetensors for each reference of a calibrator."""

    group = "calibrators"

    def __init__(self, folder: Path) -> None:
        """List the references."""
        self.folder = folder
        self.names = tuple(sorted(path.stem for path in folder.glob("*.json")))

    def facts(self, name: str) -> dict[str, Any]:
        """Return the content of the JSON file."""
        document = read_json(self.folder / f"{name}.json")
        if not isinstance(document, dict):
            raise ReferenceFolderError(f"{name}.json is not an object of settings and a tolerance.")
        return document

    def numbers(self, name: str, precision: str) -> dict[str, Tensor]:
        """Return the tensors, in a compute dtype."""
        dtype = getattr(torch, precision)
        return {
            key: tensor.to(dtype) if tensor.is_floating_point() else tensor
            for key, tensor in read_tensors(self.folder / f"{name}.safetensors").items()
        }

    def tolerance(self, name: str, precision: str) -> Tolerance:
        """Return the tolerance stated in words, such as ``float64 rtol 1e-9; float32 rtol 1e-4 atol 1e-6``."""
        text = str(self.facts(name).get("tolerance", ""))
        if text.strip() == "exact":
            return EXACT[precision]
        assumed = ASSUMED[precision]
        for which, numbers in _STATED.findall(text):
            if which == precision:
                stated = {key: float(value) for key, value in _NUMBER.findall(numbers)}
                return Tolerance(stated.get("rtol", assumed.rtol), stated.get("atol", assumed.atol))
        return assumed


Reference = MergingReference | PremergingReference | CalibratorReference
PARTS = ("merging", "premerging", "calibrators")


def open_references(folder: Path) -> list[Reference]:
    """Open the references of a folder, or of its subfolders ``merging``, ``premerging`` and ``calibrators``.

    Raises:
        ReferenceFolderError: there is no such folder, or it is of neither form.
    """
    if not folder.is_dir():
        raise ReferenceFolderError(f"There is no folder {folder}. Give one with --reference.")
    here = _open(folder)
    found = [here] if here else [ref for part in PARTS if (ref := _open(folder / part))]
    if not found:
        raise ReferenceFolderError(
            f"{folder} holds no reference numbers: expected index.json with inputs/ and outputs/, or NAME.json beside "
            "NAME.safetensors, here or in the subfolders merging/, premerging/ and calibrators/."
        )
    return found


def _open(folder: Path) -> Reference | None:
    if (folder / "index.json").is_file():
        small = (folder / "inputs" / "toyvit_config.json").is_file()
        return PremergingReference(folder) if small else MergingReference(folder)
    if folder.is_dir() and any(
        path.with_suffix(suffix).is_file() for path in folder.glob("*.json") for suffix in (TENSORS, COMPRESSED)
    ):
        return CalibratorReference(folder)
    return None


def read_json(path: Path) -> Any:
    """Read a JSON document.

    Raises:
        ReferenceFolderError: missing, or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReferenceFolderError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise ReferenceFolderError(f"{path} is not JSON: {error}.") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file, or of the file of that name with ``.xz`` where there is no other.

    Raises:
        ReferenceFolderError: missing, damaged, or larger than 256 MiB when expanded.
    """
    packed = path.with_name(f"{path.name}.xz")
    try:
        if path.exists() or not packed.exists():
            return load_file(path)
        with lzma.open(packed) as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ReferenceFolderError(f"{packed} expands to more than {LARGEST >> 20} MiB. Give the file unpacked.")
        return load(content)
    except (SafetensorError, lzma.LZMAError, EOFError) as error:
        raise ReferenceFolderError(f"{packed if not path.exists() else path} is damaged: {error}.") from error
    except OSError as error:
        raise ReferenceFolderError(f"{path} cannot be read: {error.strerror or error}.") from error


def by_name(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
