"""Every method of the survey's table stands for something here, or says why not."""

from engine.catalog import CALIBRATORS, MERGE_METHODS, TRANSFORMS
from engine.catalog.survey import TABLE, methods_beyond

# The method column of the table, in its order.
METHODS = (
    "Traditional MTL",
    "Individual Models",
    "Weighted Average",
    "Task Arithmetic",
    "SLERP",
    "Evolutionary-model-merge",
    "AdaMerging",
    "MetaGPT",
    "Fisher-Merging",
    "RegMean",
    "Ties-Merging",
    "DARE",
    "Model Breadcrumbs",
    "Model Tailor",
    "Localize-and-Stitch",
    "Consensus Merging",
    "DELLA-Merging",
    "PCB-Merging",
    "KnOTS",
    "HO-GSVD",
    "TSV-M",
    "ISO-Merging",
    "OPCM",
    "AWD",
    "DOGE",
    "WUDI-Merging",
    "DOP",
    "Surgery",
    "ProbSurgery",
    "EMR Merging",
    "Twin Merging",
    "WEMoE",
)


def test_the_table_is_complete_and_in_order():
    assert tuple(row.method for row in TABLE) == METHODS


def test_every_method_is_covered_or_says_why_not():
    for row in TABLE:
        assert row.covered or (row.remark and row.state), row.method
    assert [row.method for row in TABLE if not row.covered] == ["Traditional MTL", "Individual Models"]


def test_names_are_rows_of_the_catalog():
    for row in TABLE:
        assert set(row.merges) <= set(MERGE_METHODS), row.method
        assert set(row.transforms) <= set(TRANSFORMS), row.method
        assert set(row.calibrators) <= set(CALIBRATORS), row.method


def test_what_the_table_says_fits_the_rows():
    """Dynamic methods yield weights by task or sample; where we need other images than the survey says, we say so."""
    for row in TABLE:
        if not row.merges:
            continue
        first = MERGE_METHODS[row.merges[0]]
        assert (first.yields != "static") == row.dynamic, row.method
        if row.data == "none":
            assert not first.needs, row.method
        elif row.data == "labelled validation" and "validation" not in first.needs:
            assert "unlabelled" in first.needs, row.method
            assert row.remark, row.method
        elif row.data == "unlabelled test":
            assert first.needs == {"unlabelled", "heads"}, row.method


def test_methods_beyond_the_table_are_told_apart():
    beyond = methods_beyond(tuple(MERGE_METHODS))
    assert "model_stock" in beyond
    assert not {name for row in TABLE for name in row.merges} & set(beyond)
    assert set(beyond) | {name for row in TABLE for name in row.merges} == set(MERGE_METHODS)
