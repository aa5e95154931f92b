"""The command that shows what came from whom in a merge."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import CheckpointError, StoreError
from ..outgoing import terminal
from ..rounding import rounded
from .printing import say


def receipt(
    merge: Annotated[str, typer.Argument(help="A merged file with its receipt beside it, a receipt, or a run's id.")],
) -> None:
    """Show each expert's share of a merged vector, and what became of its entries."""
    document = _read(Path(merge)) if Path(merge).exists() else _of_run(merge)
    say(receipt_lines(document))


def receipt_lines(document: dict[str, Any]) -> str:
    """Return a receipt's numbers over all layers as a table for the terminal."""
    from ..figures.receipt import COLUMNS, PERCENT, receipt_table

    lines = [terminal(document["reason"])]
    if "total" in document:
        table = receipt_table(document)
        names = [name for name in table.columns if name != "expert"]
        width = max(len(str(name)) for name in ["expert", *table["expert"]]) + 2
        lines.append("expert".ljust(width) + "".join(name.rjust(10) for name in names))
        for row in table.to_dict("records"):
            cells = [_cell(row[name], 1 if name in PERCENT else 3) for name in names]
            lines.append(terminal(row["expert"]).ljust(width) + "".join(cell.rjust(10) for cell in cells))
        lines.append(f"{', '.join(COLUMNS[name].lower() for name in names if name in PERCENT)}: percent")
        if document["total"]["rest"] is not None:
            lines.append(f"left over: {rounded(100 * document['total']['rest'], 2)} % of the merged vector")
    for part in document["ignored"]:
        count = len(part["tensors"])
        lines.append(f"not merged, of {terminal(', '.join(part['models']))}: {count} tensors, {part['reason']}")
    return "\n".join(lines)


def _cell(value: float | None, digits: int) -> str:
    return "–" if value is None or math.isnan(value) else rounded(value, digits)


def _read(path: Path) -> dict[str, Any]:
    from ..pipeline.run.receipt import beside

    place = path / "receipt.json" if path.is_dir() else path if path.suffix == ".json" else beside(path)
    try:
        document = json.loads(place.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"There is no receipt {place} that can be read ({str(error)[:100]}). `merge RECIPE` and `export` write one."
        ) from error
    if not isinstance(document, dict) or "attribution" not in document:
        raise CheckpointError(f"{place.name} is no receipt of a merge.")
    return document


def _of_run(run: str) -> dict[str, Any]:
    from ..pipeline.export.model import run_receipt
    from ..store import Store
    from .runs import folder_of

    store = Store()
    text = run_receipt(folder_of(store, store.runs.get(run)), store.digest_file)
    if text is None:
        raise StoreError("The zoo that this run was made of is gone or has changed, so there is nothing to share out.")
    return json.loads(text)
