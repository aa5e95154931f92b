"""Low-rank factors of experts, with the start that their training had."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import MergeError
from ...zoo.folder import Zoo
from ...zoo.making.records import training_records

if TYPE_CHECKING:
    from ...types import Adapter

DRAWN = ("lora", "l_lora")  # recipes whose A starts from what a seed draws


def factors_of(zoo: Zoo, experts: Iterable[str], digest: Callable[[Path], str]) -> dict[str, tuple[str, int]]:
    """Return for each expert the digest of its file of factors, and the seed that drew their start.

    Raises:
        MergeError: an expert without factors, or whose start is not known.
    """
    records, found = training_records(zoo.folder), {}
    for name in experts:
        file = zoo.manifest.expert_table[name].factors
        if file is None:
            raise MergeError(f"Expert '{name}' has no low-rank factors. {HOW}")
        config = records.get(name, {}).get("config", {})
        if config.get("method") not in DRAWN:
            raise MergeError(
                f"Where the factors of '{name}' started is not known: build.json says nothing of a training by "
                f"{' or '.join(DRAWN)}. {HOW}"
            )
        found[name] = digest(zoo.path(file)), int(config["seed"])
    return found


HOW = "Train it with `zoo finetune --method lora`, or choose a method that merges products."


def adapters_of(zoo: Zoo, expert: str) -> dict[str, Adapter]:
    """Return the factors of an expert by matrix.

    Raises:
        MergeError: see :func:`factors_of`; or the file holds something else.
    """
    from ...training.low_rank import DOWN, UP, drawn_start, place_of_matrix
    from ...types import Adapter
    from ...weights import SafetensorsFile
    from ...zoo.encoders.backbone import architecture

    layout = zoo.modality.layout_of(architecture(zoo.folder, zoo.manifest))
    _, seed = factors_of(zoo, [expert], lambda path: "")[expert]
    file, base = SafetensorsFile(zoo.path(str(zoo.manifest.expert_table[expert].factors))), zoo.weights("base")
    found = {}
    for name in file.names:
        matrix, kind = name[: -len(DOWN)], name[-len(DOWN) :]
        if kind != DOWN:
            continue
        place = place_of_matrix(matrix, layout)
        if matrix + UP not in file.names or place is None or place[0] not in base.names:
            raise MergeError(f"The factors of '{expert}' name {matrix}, which is no matrix of this zoo's encoder.")
        down = file.tensor(name)
        start = drawn_start(matrix.removeprefix(layout.prefix), len(down), down.shape[1], seed).to(down)
        first = 0 if place[1] is None else place[1] * (base.shape(place[0])[0] // 3)
        found[matrix] = Adapter(place[0], first, down, file.tensor(matrix + UP), start)
    return found
