"""Small arrays as text, for documents in JSON: base64 of deflated bytes, with shape and dtype beside it."""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import StoreError

MOST = 64 * 2**20  # bytes of an array


def write_array(values: np.ndarray) -> dict[str, Any]:
    """Return an array as JSON values; truth values take a bit each."""
    values = np.ascontiguousarray(values)
    data = np.packbits(values) if values.dtype == bool else values
    text = base64.b64encode(zlib.compress(data.tobytes(), 9)).decode()
    return {"dtype": values.dtype.str, "shape": list(values.shape), "data": text}


def read_array(document: Mapping[str, Any]) -> np.ndarray:
    """Return what :func:`write_array` wrote.

    Raises:
        StoreError: it is no such document.
    """
    try:
        dtype, shape = np.dtype(document["dtype"]), tuple(int(size) for size in document["shape"])
        count = math.prod(shape)
        bits = dtype.kind == "b"
        size = -(-count // 8) if bits else count * dtype.itemsize
        if dtype.hasobject or not 0 <= size <= MOST:
            raise ValueError(f"{dtype} of shape {shape}")
        raw = zlib.decompressobj().decompress(base64.b64decode(document["data"], validate=True), size + 1)
        if len(raw) != size:
            raise ValueError(f"{len(raw)} bytes instead of {size}")
    except (KeyError, TypeError, ValueError, zlib.error, binascii.Error) as error:
        raise StoreError(f"Numbers of a view cannot be read ({error}). Compute it again.") from error
    flat = np.frombuffer(raw, np.uint8 if bits else dtype)
    return (np.unpackbits(flat)[:count].astype(bool) if bits else flat).reshape(shape)
