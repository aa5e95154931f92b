"""Named tensors in what a pickle holds: a table of tensors, a whole pickled module, or a TorchScript module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..errors import CheckpointError
from .pickle_machine import Made, Name, StoredTensor

MAX_DEPTH = 64
MAX_MODULES = 100_000
# Keys under which training scripts put a model beside optimizers and epochs, in the order of preference.
WRAPPERS = ("state_dict", "model_state_dict", "model", "model_state", "net", "ema_state_dict", "module")
SCRIPT = "__torch__"
REBUILDS = "torch._utils"  # module of the functions that make tensors


@dataclass
class Found:
    """The tensors of a checkpoint and what its objects say about the model."""

    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    classes: dict[str, str] = field(
        default_factory=dict
    )  # place of a module → its class, e.g. src.modeling.ImageEncoder
    settings: dict[str, Any] = field(default_factory=dict)  # place.attribute → scalar, e.g. visual…attn.num_heads

    @property
    def whole_module(self) -> bool:
        """Return whether the file holds modules, not only a table of tensors."""
        return bool(self.classes)


def find_tensors(root: Any, origin: str) -> Found:
    """Collect the named tensors of an unpickled root.

    Args:
        root: what :func:`.pickle_machine.read_pickle` returned.
        origin: the file's name, for errors.

    Raises:
        CheckpointError: there are none, a tensor is of an unsupported kind, or modules are nested without end.
    """
    found = Found()
    for place, value in _models_in(root):
        if isinstance(value, Made):
            _walk(value, place, found, origin)
        else:
            _take_table(value, found, origin)
        if found.tensors:
            return found
    kind = str(root.name) if isinstance(root, Made) else type(root).__name__
    raise CheckpointError(
        f"{origin} holds no named tensors (its content is a {kind:.100}). Choose the file with the model's weights."
    )


def _models_in(root: Any) -> Iterator[tuple[str, Any]]:
    """List the places of tensors: the root itself, then what training scripts wrap."""
    wrapped = [root.get(key) for key in WRAPPERS] if isinstance(root, dict) else []
    for value in (*wrapped, root):
        if isinstance(value, (Made, dict)):
            yield "", value
            if isinstance(value, dict):
                for key in WRAPPERS:
                    if isinstance(value.get(key), (Made, dict)):
                        yield "", value[key]


def _take_table(table: dict[Any, Any], found: Found, origin: str) -> None:
    for name, value in table.items():
        if isinstance(name, str) and isinstance(value, StoredTensor):
            found.tensors[name] = value
        elif isinstance(name, str) and _is_tensor(value):
            raise _unsupported(name, value, origin)


def _is_tensor(value: Any) -> bool:
    """Return whether a record would have made a tensor of a kind that is not read."""
    return isinstance(value, Made) and value.name.module == REBUILDS and value.name.name.startswith("_rebuild_")


def _unsupported(name: str, value: Made, origin: str) -> CheckpointError:
    kind = f"{value.name!s:.100}"
    if _is_tensor(value):
        args = value.args if isinstance(value.args, tuple) else ()
        dtype = next((f" of {each}" for each in args if isinstance(each, Name) and each.module == "torch"), "")
        called = value.name.name.removeprefix("_rebuild_").replace("_", " ")
        kind = "view that is not resolved" if called == "tensor v2" else f"{called:.100}{dtype:.40}"
    return CheckpointError(
        f"{origin}: {name:.100} is a {kind}, not a plain tensor. Save the model's weights with "
        "torch.save(model.state_dict(), …) or as safetensors, dense and of ordinary numbers (`.to_dense()`, "
        "`.dequantize()`, `.float()`, `.resolve_neg()`)."
    )


def _walk(root: Made, place: str, found: Found, origin: str) -> None:
    """Visit a module and its children in order; shared and cyclic ones end at the bounds."""
    waiting, visited = [(root, place, 0)], 0
    while waiting:
        module, where, depth = waiting.pop()
        visited += 1
        if depth > MAX_DEPTH or visited > MAX_MODULES:
            raise CheckpointError(
                f"{origin} nests its modules more than {MAX_DEPTH} deep or has more than {MAX_MODULES:,} of them, "
                "which no image encoder does; nothing was read."
            )
        found.classes[where] = str(module.name)
        parameters, buffers, children = _parts(module)
        for name, value in (*parameters.items(), *buffers.items()):
            if isinstance(value, StoredTensor):
                found.tensors[f"{where}{name}"] = value
            elif isinstance(value, Made):
                raise _unsupported(f"{where}{name}", value, origin)
        for name, value in module.state.items():
            if isinstance(name, str) and isinstance(value, (bool, int, float)) and not name.startswith("_"):
                found.settings[f"{where}{name}"] = value
        waiting += [(child, f"{where}{name}.", depth + 1) for name, child in reversed(children.items())]


def _parts(module: Made) -> tuple[dict[str, Any], dict[str, Any], dict[str, Made]]:
    """Parameters, persistent buffers and children of a module."""
    state = module.state
    if module.name.module.startswith(SCRIPT):  # TorchScript keeps everything as plain attributes
        tensors = {name: value for name, value in state.items() if isinstance(value, StoredTensor) or _is_tensor(value)}
        children = {
            name: value
            for name, value in state.items()
            if isinstance(value, Made) and value.name.module.startswith(SCRIPT)
        }
        return _named(tensors), {}, _named(children)
    hidden = state.get("_non_persistent_buffers_set")
    hidden = hidden if isinstance(hidden, set) else set()
    buffers = {name: value for name, value in _named(state.get("_buffers")).items() if name not in hidden}
    children = {name: value for name, value in _named(state.get("_modules")).items() if isinstance(value, Made)}
    return _named(state.get("_parameters")), buffers, children


def _named(table: Any) -> dict[str, Any]:
    return {name: value for name, value in table.items() if isinstance(name, str)} if isinstance(table, dict) else {}


__all__ = ["Found", "Name", "find_tensors"]
