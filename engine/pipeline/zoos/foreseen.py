"""Time that training will take, foreseen from sizes and from what earlier trainings took. Free of torch at import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...catalog import FINE_TUNING
from ...catalog.row import BACKWARD
from ...recipe import Frozen
from ...zoo.encoders.architecture import architecture, tower_size
from ...zoo.folder import Zoo
from ..rates import Rates, add_rate, known_rates

if TYPE_CHECKING:
    from ...store import Store

MAX_WORKERS = 4


class Foreseen(Frozen):
    """Expected time of a training."""

    seconds: float
    basis: str  # what it rests on


def foreseen(zoo: str, method: str, steps: int, batch_size: int, tasks: int, store: Store) -> Foreseen | None:
    """Return the time that training takes; None for architectures whose work is not known.

    A training step costs three forward passes an image times the recipe's own factor; the rate is that of the last
    training on this architecture, else that of encoding.

    Args:
        zoo: name or folder.
        method: a row of the catalogue's recipes.
        steps: of each expert.
        batch_size: images in a step.
        tasks: experts that are trained.
        store: keeps the rates of this machine.

    Raises:
        EngineError: the zoo cannot be used.
    """
    opened, rates = Zoo.open(zoo), known_rates(store)
    tower = tower_size(architecture(opened.folder, opened.manifest))
    if tower is None:
        return None
    work = tasks * _work(tower.flops, method, steps, batch_size)
    beside = min(MAX_WORKERS, rates.cores, max(tasks, 1))
    known = rates.train.get(tower.name)
    if known is None:
        return Foreseen(seconds=work / rates.encode_rate(tower.name), basis=rates.basis)
    return Foreseen(seconds=work / (known * beside), basis="the last training on this architecture")


def keep_training_rate(store: Store, config: Mapping[str, Any], settings: Mapping[str, Any], seconds: float) -> Rates:
    """Remember how fast a training was.

    Args:
        store: keeps the rates of this machine.
        config: of the architecture, as open_clip writes it.
        settings: resolved settings of the training.
        seconds: that its steps took.
    """
    rates, tower = known_rates(store), tower_size(config)
    if tower is None or seconds <= 0:
        return rates
    work = _work(tower.flops, settings.get("method", "standard"), settings["steps"], settings["batch_size"])
    return add_rate(store, "train", tower.name, work / seconds)


def _work(flops: float, method: str, steps: int, batch_size: int) -> float:
    """Return the operations of one training."""
    return flops * BACKWARD * FINE_TUNING[method].cost * steps * batch_size
