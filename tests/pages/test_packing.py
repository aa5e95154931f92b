"""The linked feature view's bytes, read back as their module describes them, and the rules of the last writer."""

import base64
import io
import json
import struct
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from pages.features.packing import (
    MISSING,
    Atlas,
    Categorical,
    Continuous,
    Labels,
    Panel,
    ScatterDataError,
    content_packet,
    pack,
    thumbnail_packet,
    view_packet,
)
from pages.features.selection import Exchange, Selection, read_selection, settle


def unpack(packet: bytes) -> tuple[dict, dict[str, np.ndarray]]:
    (length,) = struct.unpack("<I", packet[:4])
    assert length % 4 == 0
    header = json.loads(packet[4 : 4 + length])
    columns = {}
    for name, entry in header["columns"].items():
        assert entry["offset"] % 4 == 0
        count = int(np.prod(entry["shape"]))
        flat = np.frombuffer(packet, f"<{entry['dtype']}", count, offset=4 + length + entry["offset"])
        columns[name] = flat.reshape(entry["shape"])
    return header, columns


def made_panels(n: int = 7, count: int = 3) -> list[Panel]:
    points = np.random.default_rng(0).normal(size=(count, n, 2))
    shapes = ("circle", "triangle", "square", "circle")
    return [Panel(f"State {p}", shapes[p], points[p]) for p in range(count)]


def test_content_survives_the_round_trip():
    panels = made_panels()
    truth = np.array([0, 1, 2, 0, 1, 2, -1])
    predictions = np.stack([truth, np.roll(truth, 1), np.full(7, -1)])
    index = np.array([70_000, 0, 3, 9, 2, 1, 4])
    labels = Labels(["á", "b", "c"], truth, predictions, index=index)
    header, columns = unpack(content_packet(panels, labels, "run/t-sne"))
    assert header["points"] == 7
    assert header["panels"] == 3
    assert header["key"] == "content:run/t-sne"
    assert header["vocabulary"] == ["á", "b", "c"]
    expected = np.stack([panel.coordinates for panel in panels]).astype("f4")
    np.testing.assert_array_equal(columns["coordinates"], expected)
    np.testing.assert_allclose(header["bounds"], [*expected.min(axis=(0, 1)), *expected.max(axis=(0, 1))])
    assert columns["truth"].tolist() == [0, 1, 2, 0, 1, 2, MISSING]
    assert columns["predictions"].shape == (3, 7)
    assert (columns["predictions"][2] == MISSING).all()
    assert columns["index"].tolist() == index.tolist()
    assert "groups" not in columns


def test_categorical_view_survives_the_round_trip():
    panels = made_panels(n=11)
    visible = np.arange(11) % 2 == 0
    colour = Categorical("Task", ["a", "b"], np.arange(11) % 2, ["#000000", "#FFFFFF"])
    packet = view_packet(panels, colour, {"key": "view"}, visible, Selection((0, 10), 4))
    header, columns = unpack(packet)
    assert header["key"] == "view"
    assert header["colour"]["names"] == ["a", "b"]
    assert header["colour"]["darkPalette"] is None
    assert header["selection"] == {"revision": 4}
    assert [panel["shape"] for panel in header["panels"]] == ["circle", "triangle", "square"]
    assert columns["colour"].tolist() == (np.arange(11) % 2).tolist()
    np.testing.assert_array_equal(np.unpackbits(columns["visible"], bitorder="little")[:11], visible)
    assert np.flatnonzero(np.unpackbits(columns["selection"], bitorder="little")).tolist() == [0, 10]


def test_continuous_view_keeps_unknown_values_and_finds_the_scale():
    panels = made_panels(n=4)
    values = np.array([1.0, np.nan, 3.0, 2.0])
    header, columns = unpack(view_packet(panels, Continuous("Shift", values), {}))
    assert (header["colour"]["low"], header["colour"]["high"]) == (1.0, 3.0)
    np.testing.assert_array_equal(columns["colour"], values.astype("f4"))
    assert "selection" not in columns


@pytest.mark.parametrize("values", [np.full(4, 2.5), np.full(4, np.nan)])
def test_a_scale_never_has_equal_ends(values):
    header, _ = unpack(view_packet(made_panels(n=4), Continuous("Shift", values), {}))
    assert header["colour"]["high"] > header["colour"]["low"]


def test_colours_may_differ_between_panels():
    values = np.array([[0, 1], [1, 0], [-1, 1]])
    _, columns = unpack(view_packet(made_panels(n=2), Categorical("Prediction", ["a", "b"], values), {}))
    assert columns["colour"].tolist() == [[0, 1], [1, 0], [MISSING, 1]]


@pytest.mark.parametrize(("size", "count"), [((32, 32), 1500), ((28, 20), 3), ((8, 8), 1024)])
def test_thumbnails_come_back_from_their_sheets(size, count):
    height, width = size
    tones = (np.arange(count) * 37 % 256).astype(np.uint8)
    images = np.broadcast_to(tones[:, None, None, None], (count, height, width, 3)).copy()
    header, columns = unpack(thumbnail_packet(Atlas("set", images)))
    assert header["size"] == [width, height]
    cell_width, cell_height = header["cell"]
    assert len(columns) == -(-count // header["perSheet"])
    for index in (0, 1, count - 1):
        sheet, place = divmod(index, header["perSheet"])
        on_sheet = min(header["perSheet"], count - sheet * header["perSheet"])
        row, column = divmod(place, int(np.ceil(np.sqrt(on_sheet))))
        grid = np.asarray(Image.open(io.BytesIO(columns[f"sheet{sheet}"].tobytes())))
        found = grid[row * cell_height :, column * cell_width :][:height, :width].astype(int)
        assert np.abs(found - int(tones[index])).max() <= 3


def test_no_points_is_a_valid_view():
    header, columns = unpack(content_packet([Panel("Merged", "circle", np.zeros((0, 2)))], None, "empty"))
    assert header["points"] == 0
    assert columns["coordinates"].shape == (1, 0, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: content_packet([*made_panels(7, 2), made_panels(6, 3)[2]], None, "k"), "different numbers of points"),
        (lambda: content_packet([*made_panels(7, 1), *made_panels(7, 1)], None, "k"), "share a title"),
        (lambda: content_packet([Panel("M", "circle", np.zeros((7, 3)))], None, "k"), r"'M'.*\(7, 3\).*\(n, 2\)"),
        (lambda: content_packet([], None, "k"), "0 panels; expected 1 to 4"),
        (lambda: content_packet([Panel("Merged", "circle", np.full((7, 2), np.nan))], None, "k"), "NaN"),
        (
            lambda: content_packet(made_panels(), Labels(["a"], np.zeros(6, int), np.zeros((3, 7), int)), "k"),
            r"labels.truth has shape \(6,\); expected \(7,\)",
        ),
        (
            lambda: content_packet(made_panels(), Labels(["a"], np.zeros(7, int), np.zeros((2, 7), int)), "k"),
            r"labels.predictions has shape \(2, 7\); expected \(3, 7\)",
        ),
        (
            lambda: view_packet(made_panels(), Categorical("Task", ["a"], np.arange(7)), {}),
            "colour 'Task' has index 6; there are 1 names",
        ),
        (lambda: view_packet(made_panels(), Continuous("Shift", np.zeros(3)), {}), r"'Shift' has shape \(3,\)"),
        (
            lambda: view_packet(made_panels(), Continuous("Shift", np.zeros(7)), {}, np.ones(6, bool)),
            r"visible has shape \(6,\); expected \(7,\)",
        ),
        (lambda: thumbnail_packet(Atlas("k", np.zeros((2, 8, 8), np.uint8))), r"uint8 of shape \(2, 8, 8\)"),
        (lambda: thumbnail_packet(Atlas("k", np.zeros((2, 8, 8, 3)))), "float64"),
        (lambda: pack({}, {"ids": np.zeros(2, np.int64)}), "'ids' has dtype int64"),
    ],
)
def test_arrays_that_do_not_fit_are_named(call, message):
    with pytest.raises(ScatterDataError, match=message):
        call()


def test_the_browser_reports_lists_and_bit_sets():
    bits = np.packbits(np.isin(np.arange(20), [2, 3, 19]), bitorder="little")
    packed = {"revision": 5, "bits": base64.b64encode(bits.tobytes()).decode()}
    assert read_selection(packed, 20) == Selection((2, 3, 19), 5)
    assert read_selection(packed, 10) == Selection((2, 3), 5)
    endless = base64.b64encode(b"\xff" * 4_000_000).decode()  # as a list, a gigabyte
    tracemalloc.start()
    assert read_selection({"revision": 5, "bits": endless}, 20).indices == tuple(range(20))
    assert tracemalloc.get_traced_memory()[1] < 40_000_000
    tracemalloc.stop()
    assert read_selection({"revision": 1, "ids": [3, 2, 3, 99, -1, "x", True]}, 20) == Selection((2, 3), 1)


@pytest.mark.parametrize("state", [None, [], {"ids": [1]}, {"revision": "1", "ids": [1]}, {"revision": 1, "bits": "?"}])
def test_a_malformed_report_selects_nothing(state):
    assert read_selection(state, 20).indices == ()


def test_a_gesture_holds_until_the_page_says_something_new():
    memory = settle(Exchange(), Selection(), [1, 2], 10)
    assert memory.current == Selection((1, 2), 1)
    assert memory.written == memory.current
    gesture = Selection((5,), 2)
    memory = settle(memory, gesture, [1, 2], 10)
    assert memory.current == gesture
    memory = settle(memory, gesture, [7], 10)
    assert memory.current == memory.written == Selection((7,), 3)
    assert settle(memory, gesture, None, 10).current == Selection((7,), 3)


def test_handing_the_selection_back_never_undoes_a_newer_gesture():
    memory = settle(Exchange(), Selection((1,), 1), None, 10)
    memory = settle(memory, Selection((2,), 2), memory.current.indices, 10)
    assert memory.current == Selection((2,), 2)
    assert memory.written is None


def test_a_gesture_made_while_the_page_wrote_wins():
    memory = settle(Exchange(), Selection((1,), 1), [4], 10)
    assert memory.current.revision == 2
    assert settle(memory, Selection((6,), 2), [4], 10).current == Selection((6,), 2)


def test_a_component_that_was_unmounted_gets_its_selection_back():
    memory = settle(Exchange(), Selection((1, 3), 6), None, 10)
    memory = settle(memory, Selection(), None, 10)
    assert memory.written == Selection((1, 3), 6)


def test_rows_that_no_longer_exist_are_dropped():
    memory = settle(Exchange(), Selection((1, 8), 1), None, 10)
    assert settle(memory, Selection((1, 8), 1), None, 5).current.indices == (1,)
    assert settle(Exchange(), Selection(), [2, 99], 10).current.indices == (2,)
