"""Points, labels, pictures and colours of the linked feature view, packed as bytes. Free of Streamlit.

Three packets feed the component, each one ``bytes`` value of its own, so that a change sends only what changed:

========== ======================================= ========================= =============================
packet     holds                                   changes with              size, 3 panels of 8,000
========== ======================================= ========================= =============================
content    coordinates, classes, rows in the data  the run or the projection 304 KB
thumbnails JPEG sheets of 1,024 thumbnails         the images                2.8 MB of 32 × 32, 350 B each
 or texts  the texts themselves                    the texts                 60 B each
view       titles, colours, filter, selection      a widget that recolours   17 KB, 33 KB if continuous
========== ======================================= ========================= =============================

Raw thumbnails would be 24 MB. PNG takes 8.5 MB and four times as long to write, WebP 1.9 MB and three times as long.
JPEG without chroma subsampling keeps the edges of line drawings, and tiles padded to whole 8 × 8 blocks do not bleed
into each other.

Layout of a packet, little-endian: ``uint32`` length of the header; the header, UTF-8 JSON padded with spaces to a
multiple of 4; then the columns back to back, each padded with zeros to a multiple of 4. ``header["columns"]`` gives for
every column its ``dtype`` (``f4``, ``i2``, ``u4``, ``u2``, ``u1``), ``shape`` and ``offset`` in bytes from the end of
the header.
"""

import io
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from PIL import Image

from pages.features.selection import Selection

Shape = Literal["circle", "triangle", "square"]

MISSING = 0xFFFF
THUMBNAILS_PER_SHEET = 1024
JPEG_BLOCK = 8
MAX_PANELS = 4
COORDINATE_LIMIT = 1e6

TOL_MUTED = ("#332288", "#88CCEE", "#44AA99", "#117733", "#999933", "#DDCC77", "#CC6677", "#AA4499")
TOL_MUTED_DARK = ("#8A7BE8", "#88CCEE", "#44AA99", "#3FB56B", "#B5B54A", "#DDCC77", "#E07F8F", "#CF6BBE")
CIVIDIS = ("#00224E", "#35456C", "#666970", "#948E77", "#C8B866", "#FEE838")
PURPLE_ORANGE = ("#B35806", "#F1A340", "#D8D8D8", "#998EC3", "#542788")


class ScatterDataError(ValueError):
    """The arrays given to the linked feature view do not fit each other."""


@dataclass(frozen=True, eq=False)
class Panel:
    """One space of the joint projection.

    Args:
        title: the state, shown above the panel.
        shape: marker of every point of this panel, the second cue beside the title.
        coordinates: of shape (n, 2), projection units; row i is the same image in every panel.
        note: a short figure beside the title, such as an accuracy.
    """

    title: str
    shape: Shape
    coordinates: np.ndarray
    note: str = ""


@dataclass(frozen=True, eq=False)
class Categorical:
    """Colour by category.

    Args:
        title: what the categories are, above the legend.
        names: the categories, in legend order.
        values: of shape (n,), or (panels, n) where it differs between panels (a prediction); indices into ``names``,
            negative where unknown.
        palette: hex colours, repeated when there are more names.
        dark_palette: the same for the dark theme; without it, colours too dark to see there are lightened.
        centroids: whether each panel names the categories at their medians.
        live: of a film: values that the browser takes from each frame (``correct``), in place of these.
    """

    title: str
    names: Sequence[str]
    values: np.ndarray
    palette: Sequence[str] = TOL_MUTED
    dark_palette: Sequence[str] | None = None
    centroids: bool = True
    live: str | None = None


@dataclass(frozen=True, eq=False)
class Continuous:
    """Colour by a number.

    Args:
        title: what the number is, beside the legend.
        values: of shape (n,) or (panels, n); NaN where unknown.
        stops: hex colours at equal distances from ``low`` to ``high``.
        low, high: ends of the scale, in the unit of ``values``; default: the smallest and the largest finite value.
        unit: printed after the numbers.
        live: of a film: values that the browser takes from each frame (``shift``), in place of these.
    """

    title: str
    values: np.ndarray
    stops: Sequence[str] = CIVIDIS
    low: float | None = None
    high: float | None = None
    unit: str = ""
    live: str | None = None


@dataclass(frozen=True, eq=False)
class Labels:
    """Texts of the hover card.

    Args:
        vocabulary: names that the columns index.
        truth: of shape (n,), the true class.
        predictions: of shape (panels, n), each panel's predicted class; negative where there is none.
        groups: of shape (n,), optional, such as the task an image belongs to.
        graded: groups whose answers are numbers, which are not right or wrong.
        index: of shape (n,), optional: the number that names a sample everywhere, its row in its task's test array.
    """

    vocabulary: Sequence[str]
    truth: np.ndarray
    predictions: np.ndarray
    groups: np.ndarray | None = None
    graded: Sequence[int] = ()
    index: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Atlas:
    """Thumbnails for the hover card.

    Args:
        key: names the content; images of another content need another key.
        images: of shape (n, height, width, 3), uint8.
    """

    key: str
    images: np.ndarray

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, eq=False)
class Sentences:
    """Texts for the hover card, in place of thumbnails.

    Args:
        key: names the content; other texts need another key.
        texts: one a point; both parts of a pair, joined.
    """

    key: str
    texts: Sequence[str]

    def __len__(self) -> int:
        return len(self.texts)


def content_packet(panels: Sequence[Panel], labels: Labels | None, key: str) -> bytes:
    """Pack the coordinates and the hover card's columns.

    Args: two to four panels of equally many points (one is allowed, for a lone space).
    Raises: ScatterDataError: panels or labels of different lengths, coordinates that are not finite or not (n, 2).
    """
    count = point_count(panels)
    coordinates = np.stack([panel.coordinates for panel in panels]).astype("<f4")
    low, high = _bounds(coordinates)
    header: dict[str, Any] = {"key": content_name(key), "points": count, "panels": len(panels), "bounds": [*low, *high]}
    columns = {"coordinates": coordinates}
    if labels is not None:
        header |= {"vocabulary": list(labels.vocabulary), "graded": list(labels.graded)}
        size = len(labels.vocabulary)
        columns["truth"] = _index_column(labels.truth, (count,), size, "labels.truth")
        columns["predictions"] = _index_column(labels.predictions, (len(panels), count), size, "labels.predictions")
        if labels.groups is not None:
            columns["groups"] = _index_column(labels.groups, (count,), size, "labels.groups")
        if labels.index is not None:
            _expect_shape(labels.index, (count,), "labels.index")
            columns["index"] = labels.index.astype("<u4")
    return pack(header, columns)


def thumbnail_packet(atlas: Atlas) -> bytes:
    """Pack thumbnails as JPEG sheets, row by row, left to right.

    Raises: ScatterDataError: images that are not uint8 of shape (n, height, width, 3).
    """
    images = np.asarray(atlas.images)
    if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != np.uint8:
        raise ScatterDataError(
            f"Thumbnails are {images.dtype} of shape {images.shape}; expected uint8 of shape (n, height, width, 3)."
        )
    sheets = [
        _sheet(images[start : start + THUMBNAILS_PER_SHEET]) for start in range(0, len(images), THUMBNAILS_PER_SHEET)
    ]
    height, width = (int(side) for side in images.shape[1:3])
    header = {
        "key": thumbnails_name(atlas.key),
        "images": len(images),
        "size": [width, height],
        "cell": [_padded(width, JPEG_BLOCK), _padded(height, JPEG_BLOCK)],
        "perSheet": THUMBNAILS_PER_SHEET,
    }
    return pack(header, {f"sheet{number}": np.frombuffer(sheet, np.uint8) for number, sheet in enumerate(sheets)})


def sentence_packet(sentences: Sentences) -> bytes:
    """Pack texts, where pictures would have thumbnails."""
    header = {"key": thumbnails_name(sentences.key), "images": len(sentences), "texts": list(sentences.texts)}
    return pack(header, {})


def view_packet(
    panels: Sequence[Panel],
    colour: Categorical | Continuous,
    header: Mapping[str, Any],
    visible: np.ndarray | None = None,
    selection: Selection | None = None,
) -> bytes:
    """Pack what may change while the points stay: titles, colours, filter and external selection.

    Args:
        header: further fields, passed on as they are.
        visible: of shape (n,), bool; points that the page's filters keep.
        selection: to be taken over by the browser if it is newer than its own.
    Raises: ScatterDataError: columns that do not have one value a point, unknown categories.
    """
    count = point_count(panels)
    fields: dict[str, Any] = {**header, "points": count}
    fields["panels"] = [{"title": panel.title, "shape": panel.shape, "note": panel.note} for panel in panels]
    values = np.asarray(colour.values)
    shape = (len(panels), count) if values.ndim == 2 else (count,)
    columns: dict[str, np.ndarray] = {}
    if isinstance(colour, Categorical):
        columns["colour"] = _index_column(values, shape, len(colour.names), f"colour '{colour.title}'")
        fields["colour"] = {
            "kind": "categorical",
            "title": colour.title,
            "names": list(colour.names),
            "palette": list(colour.palette),
            "darkPalette": list(colour.dark_palette) if colour.dark_palette else None,
            "centroids": colour.centroids,
            "live": colour.live,
        }
    else:
        _expect_shape(values, shape, f"colour '{colour.title}'")
        columns["colour"] = values.astype("<f4")
        low, high = _scale(colour, values)
        fields["colour"] = {
            "kind": "continuous",
            "title": colour.title,
            "unit": colour.unit,
            "stops": list(colour.stops),
            "low": low,
            "high": high,
            "live": colour.live,
        }
    if visible is not None:
        _expect_shape(np.asarray(visible), (count,), "visible")
        columns["visible"] = np.packbits(np.asarray(visible, dtype=bool), bitorder="little")
    if selection is not None:
        fields["selection"] = {"revision": selection.revision}
        columns["selection"] = _bits(selection.indices, count)
    return pack(fields, columns)


def content_name(key: str) -> str:
    """Return the name under which the browser keeps a content packet."""
    return f"content:{key}"


def thumbnails_name(key: str) -> str:
    """Return the name under which the browser keeps a thumbnail packet."""
    return f"thumbnails:{key}"


def pack(header: Mapping[str, Any], columns: Mapping[str, np.ndarray]) -> bytes:
    """Lay out a header and its columns as the module describes.

    Raises: ScatterDataError: a column of a dtype other than float32, int16, uint32, uint16, uint8.
    """
    entries, chunks, offset = {}, [], 0
    for name, column in columns.items():
        kind = f"{column.dtype.kind}{column.dtype.itemsize}"
        if kind not in {"f4", "i2", "u4", "u2", "u1"}:
            raise ScatterDataError(
                f"Column '{name}' has dtype {column.dtype}; expected float32, int16, uint32, uint16 or uint8."
            )
        chunk = np.ascontiguousarray(column, dtype=f"<{kind}").tobytes()
        entries[name] = {"dtype": kind, "shape": list(column.shape), "offset": offset}
        chunks.append(chunk.ljust(_padded(len(chunk), 4), b"\0"))
        offset += len(chunks[-1])
    text = json.dumps({**header, "columns": entries}, allow_nan=False, separators=(",", ":")).encode()
    text = text.ljust(_padded(len(text), 4))
    return b"".join([struct.pack("<I", len(text)), text, *chunks])


def point_count(panels: Sequence[Panel]) -> int:
    """Count the points of a panel, the same in all of them.

    Raises: ScatterDataError: no panel or too many, equal titles, different lengths, coordinates of another shape.
    """
    if not 1 <= len(panels) <= MAX_PANELS:
        raise ScatterDataError(f"The view got {len(panels)} panels; expected 1 to {MAX_PANELS}.")
    for panel in panels:
        if panel.coordinates.ndim != 2 or panel.coordinates.shape[1] != 2:
            raise ScatterDataError(
                f"Panel '{panel.title}' has coordinates of shape {panel.coordinates.shape}; expected (n, 2)."
            )
    titles = [panel.title for panel in panels]
    if len(set(titles)) < len(titles):
        raise ScatterDataError(f"Panels share a title: {titles}. Give each state its own.")
    counts = {panel.title: len(panel.coordinates) for panel in panels}
    if len(set(counts.values())) > 1:
        raise ScatterDataError(f"Panels have different numbers of points: {counts}. Rows must be the same images.")
    return len(panels[0].coordinates)


def _sheet(images: np.ndarray) -> bytes:
    """Write images of shape (m, h, w, 3) as one JPEG, a square grid of cells padded to whole blocks."""
    count, height, width, _ = images.shape
    columns = int(np.ceil(np.sqrt(count)))
    rows = -(-count // columns)
    pad = ((0, rows * columns - count), (0, -height % JPEG_BLOCK), (0, -width % JPEG_BLOCK), (0, 0))
    cells = np.pad(images, pad, mode="edge")
    cells = cells.reshape(rows, columns, *cells.shape[1:]).swapaxes(1, 2)
    buffer = io.BytesIO()
    grid = np.ascontiguousarray(cells).reshape(rows * cells.shape[1], -1, 3)
    Image.fromarray(grid).save(buffer, "JPEG", quality=80, subsampling=0)
    return buffer.getvalue()


def _bounds(coordinates: np.ndarray) -> tuple[list[float], list[float]]:
    flat = coordinates.reshape(-1, 2)
    if not len(flat):
        return [0.0, 0.0], [1.0, 1.0]
    if not np.isfinite(flat).all() or np.abs(flat).max() > COORDINATE_LIMIT:
        raise ScatterDataError(
            f"Coordinates contain NaN, infinite or huge values; expected finite numbers within ±{COORDINATE_LIMIT:g}."
        )
    return flat.min(axis=0).tolist(), flat.max(axis=0).tolist()


def _scale(colour: Continuous, values: np.ndarray) -> tuple[float, float]:
    """Return the ends of a colour scale, apart even where all values are equal or none is finite."""
    finite = values[np.isfinite(values)]
    low = float(finite.min() if finite.size else 0.0) if colour.low is None else float(colour.low)
    high = float(finite.max() if finite.size else 1.0) if colour.high is None else float(colour.high)
    return (low, high) if high > low else (low, low + 1.0)


def _index_column(values: np.ndarray, shape: tuple[int, ...], size: int, what: str) -> np.ndarray:
    """Return indices below ``size`` as uint16, negative ones as MISSING."""
    values = np.asarray(values)
    _expect_shape(values, shape, what)
    if values.size and values.max() >= min(size, MISSING):
        raise ScatterDataError(f"{what} has index {int(values.max())}; there are {size} names (at most {MISSING}).")
    return np.where(values < 0, MISSING, values).astype("<u2")


def _expect_shape(values: np.ndarray, shape: tuple[int, ...], what: str) -> None:
    if values.shape != shape:
        raise ScatterDataError(f"{what} has shape {values.shape}; expected {shape}, one value a point.")


def _bits(indices: Sequence[int], count: int) -> np.ndarray:
    mask = np.zeros(count, bool)
    mask[list(indices)] = True
    return np.packbits(mask, bitorder="little")


def _padded(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple
