"""The section of the weights page that shows the receipt of a merge: what came from whom."""

import streamlit as st

from engine.figures.drawing import expert_titles
from engine.figures.receipt import COLUMNS, PERCENT, SHARES, receipt_arrays, receipt_table
from engine.figures.weights import layer_heatmap
from engine.pipeline.views.receipt import RECEIPT
from pages.shared.chrome import figure, theme
from pages.shared.on_demand import view_on_demand
from pages.shared.state import RunView
from pages.shared.tables import draw_table


def receipt(run: RunView) -> None:
    """Draw every expert's part in the merged vector, over all layers and layer by layer, to be taken along."""
    st.write(
        "What came from whom: each expert's share of the merged vector, and what became of the entries that "
        "fine-tuning had moved. Shares sum to 100 % where a method adds up one vector an expert."
    )
    folder = view_on_demand(
        run,
        RECEIPT,
        RECEIPT.ask(run.report.recipe),
        key="weights.receipt",
        label="Make the receipt",
        icon=":material/receipt_long:",
        takes="Every expert is read once more: a second for small encoders, about a minute for eight of ViT-B/32.",
    )
    if folder is None:
        return
    document = RECEIPT.read(folder)
    st.caption(document["reason"])
    if "total" in document:
        _numbers(run, document)
    st.download_button(
        "Receipt (JSON)",
        (folder / "receipt.json").read_bytes(),
        "receipt.json",
        "application/json",
        key="weights.receipt.file",
        icon=":material/download:",
        help="The same file lies beside exported weights; `engine verify` makes it again and compares.",
    )


def _numbers(run: RunView, document: dict) -> None:
    titles = expert_titles(run.report, list(document["experts"]))
    number = st.column_config.NumberColumn
    columns = {n: number(title, format="%.1f %%" if n in PERCENT else "%.3f") for n, title in COLUMNS.items()}
    draw_table(
        receipt_table(document, titles),
        hide_index=True,
        key="weights.receipt.table",
        column_config={"expert": "Expert", **columns},
    )
    if document["attribution"] != "none":
        figure(
            layer_heatmap(
                SHARES.compute(receipt_arrays(document)).T,
                document["layers"],
                titles,
                theme(),
                unit=SHARES.unit,
                signed=True,
            ),
            key="weights.receipt.layers",
            run=run,
            unit=f"{SHARES.title}: {SHARES.unit}",
            images=False,
        )
    for part in document["ignored"]:
        listed = ", ".join(f"`{name}`" for name in part["tensors"][:4])
        more = f" and {len(part['tensors']) - 4} more" if len(part["tensors"]) > 4 else ""
        st.caption(f"Not merged, of {', '.join(part['models'])}: {listed}{more}: {part['reason']}.")
