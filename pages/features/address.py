"""The selection in the address: the name of a worklist, or the images themselves, packed."""

import base64
import binascii
import hashlib
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import streamlit as st

from pages.features.data import Space

LIST = "list"  # the address parameter that names a worklist
PICKED = "picked"  # the address parameter that holds any other selection
LONGEST = 1500  # characters; a selection that packs into no fewer stays out of the address
RAW = -15  # zlib: deflate without header


def pack(rows: Sequence[int], space: Space) -> str:
    """Name the images of a space and the rows that are selected of them, in characters that need no quoting."""
    bits = np.zeros(len(space), dtype=bool)
    bits[list(rows)] = True
    deflate = zlib.compressobj(9, wbits=RAW)
    packed = deflate.compress(np.packbits(bits).tobytes()) + deflate.flush()
    return f"{_name(space)}.{base64.urlsafe_b64encode(packed).decode().rstrip('=')}"


def unpack(text: str, space: Space) -> tuple[int, ...] | None:
    """Return the rows that a packed selection names; None for one of other images, or what :func:`pack` never wrote."""
    name, _, body = text.partition(".")
    size = -(-len(space) // 8)
    if name != _name(space) or len(body) > LONGEST:
        return None
    try:
        packed = base64.b64decode(body + "=" * (-len(body) % 4), altchars="-_", validate=True)
        raw = zlib.decompressobj(RAW).decompress(packed, size + 1)
    except (binascii.Error, ValueError, zlib.error):
        return None
    rows = np.flatnonzero(np.unpackbits(np.frombuffer(raw, np.uint8)))
    return tuple(rows.tolist()) if len(raw) == size and (rows < len(space)).all() else None


def follow(space: Space, picks: Mapping[str, np.ndarray], key: str, *, stale: bool) -> None:
    """Select what the address names, once; it is handed over under ``{key}.picked``.

    Args:
        space: the images.
        picks: the worklists' rows by name.
        key: prefix of the widgets.
        stale: whether the projection is about to be replaced: by then the address may name its images.
    """
    asked = _in_address()
    if not any(asked) or asked == st.session_state.get(f"{key}.address"):
        return
    listed, picked = asked
    rows = picks.get(listed) if listed else unpack(picked, space)
    if rows is None and stale:
        return
    st.session_state[f"{key}.address"] = asked
    if rows is None:
        st.toast("The address selects images that are not in this view, so nothing is selected.")
    else:
        st.session_state[f"{key}.picked"] = tuple(int(row) for row in rows)


def keep(selected: Sequence[int], space: Space, picks: Mapping[str, np.ndarray], key: str, *, stale: bool) -> None:
    """Let the address name what is selected: a list where it is one, else the images."""
    before = _in_address()
    if stale and before[1] and unpack(before[1], space) is None:
        return  # it waits for the projection that is being computed
    rows = list(selected)
    names = [name for name in (before[0], *picks) if name in picks and picks[name].tolist() == rows]
    packed = pack(rows, space) if rows and not names else None
    wanted = (names[0] if names else None, packed if packed and len(packed) <= LONGEST else None)
    for parameter, old, new in zip((LIST, PICKED), before, wanted, strict=True):
        if new is not None and new != old:
            st.query_params[parameter] = new
        elif new is None and old is not None:
            st.query_params.pop(parameter)
    st.session_state[f"{key}.address"] = wanted


def _in_address() -> tuple[str | None, str | None]:
    return st.query_params.get(LIST), st.query_params.get(PICKED)


def _name(space: Space) -> str:
    """Return a name that tells one set of images from another."""
    rows = hashlib.sha256("\0".join(space.tasks).encode("utf-8", "replace"))
    rows.update(np.stack([space.task, space.index]).astype("<i8").tobytes())
    return rows.hexdigest()[:8]
