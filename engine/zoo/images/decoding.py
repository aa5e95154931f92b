"""Encoded images to RGB pixels, one at a time and within bounds. Free of torch.

Only still-image formats are opened; size is checked before a pixel is decoded. Grey and palette images become RGB,
16-bit values are scaled to 8 bits, transparency is laid on white, and a camera's orientation note is obeyed.
"""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
from PIL import (
    Image,
    ImageOps,
    TiffImagePlugin,  # noqa: F401 - registers itself; asked for by name only, Pillow would load all formats
    UnidentifiedImageError,
    WebPImagePlugin,  # noqa: F401
)

from ...errors import DataError
from ...manifest import Preprocess

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
MAX_PIXELS = 89_000_000
MAX_ENCODED_BYTES = 256 * 2**20
GREY = 127
LONGEST = 64  # times its short side: what an image has beyond, outside its middle, is cut off before it is resized

Encoded = bytes | Path | np.ndarray | Image.Image  # an image as a reader hands it out


class CorruptImage(DataError):
    """One image that cannot be decoded; the message names it."""


def decode(raw: Encoded, name: str, *, side: int | None = None) -> Image.Image:
    """Decode one image.

    Args:
        raw: its encoded bytes, its file, or pixels that a reader has decoded already.
        name: what messages call it.
        side: a rough decoder may be used that keeps at least this many px.

    Returns:
        An image of mode RGB.

    Raises:
        CorruptImage: damaged, of no known format, or larger than MAX_PIXELS.
    """
    try:
        image = _open(raw)
        if image.width * image.height > MAX_PIXELS or not image.width * image.height:
            raise ValueError(f"{image.width} x {image.height} px; at most {MAX_PIXELS:,} px are decoded")
        if side is not None and image.format == "JPEG":
            image.draft("RGB", (2 * side, 2 * side))
        image.load()
        return _rgb(ImageOps.exif_transpose(image))
    except UnidentifiedImageError as error:
        raise CorruptImage(f"{name}: not an image of a known format") from error
    except (OSError, ValueError, SyntaxError, EOFError, OverflowError, struct.error, Image.DecompressionBombError) as e:
        raise CorruptImage(f"{name}: {_short(e)}") from e
    except (TypeError, KeyError, IndexError, AttributeError, MemoryError, ZeroDivisionError) as error:
        # a decoder that stumbles over damaged headers
        raise CorruptImage(f"{name}: damaged ({type(error).__name__})") from error


def fit(image: Image.Image, preprocess: Preprocess) -> np.ndarray:
    """Resize and crop an image as the encoder wants it: uint8 (size, size, 3)."""
    size = preprocess.size
    how = Image.Resampling.BICUBIC if preprocess.interpolation == "bicubic" else Image.Resampling.BILINEAR
    if preprocess.resize_mode == "squash":
        return np.asarray(image if image.size == (size, size) else image.resize((size, size), how))
    width, height = image.size
    shortest = min(width, height)
    if max(width, height) > LONGEST * shortest:
        image = _middle(image, LONGEST * shortest)
        width, height = image.size
    if shortest != size:
        long = int(size * max(width, height) / shortest)
        image = image.resize((size, long) if width <= height else (long, size), how)
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    return np.asarray(image.crop((left, top, left + size, top + size)))


def _middle(image: Image.Image, longest: int) -> Image.Image:
    """Return the middle of an image whose sides are cut to a length."""
    width, height = (min(side, longest) for side in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def shrink(image: Image.Image, side: int) -> np.ndarray:
    """Return a whole image inside a grey square: uint8 (side, side, 3)."""
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.BOX, reducing_gap=2.0)
    result = np.full((side, side, 3), GREY, np.uint8)
    top, left = (side - small.height) // 2, (side - small.width) // 2
    result[top : top + small.height, left : left + small.width] = np.asarray(small)
    return result


def _open(raw: Encoded) -> Image.Image:
    if isinstance(raw, Image.Image):
        return raw
    if isinstance(raw, np.ndarray):
        return Image.fromarray(raw)
    if isinstance(raw, Path):
        if raw.stat().st_size > MAX_ENCODED_BYTES:
            raise ValueError(f"{raw.stat().st_size:,} bytes; at most {MAX_ENCODED_BYTES:,} are read")
        raw = raw.read_bytes()
    if not raw:
        raise ValueError("empty")
    if len(raw) > MAX_ENCODED_BYTES:
        raise ValueError(f"{len(raw):,} bytes; at most {MAX_ENCODED_BYTES:,} are read")
    return Image.open(io.BytesIO(raw), formats=FORMATS)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_eight_bits(np.asarray(image))).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(ground, image).convert("RGB")
    return image.convert("RGB")


def _eight_bits(values: np.ndarray) -> np.ndarray:
    """Return grey values of 16 or 32 bits or floats as uint8 (h, w)."""
    if not np.isfinite(values).all() or values.min() < 0:
        raise ValueError(f"grey values from {values.min()} to {values.max()} have no meaning as an image")
    top = float(values.max())
    if values.dtype.kind == "f" and top <= 1:
        return np.round(values * 255).astype(np.uint8)
    if top <= 255 and values.dtype.itemsize != 2:
        return values.astype(np.uint8)
    if top > 65_535:
        raise ValueError(f"grey values up to {top:g}; at most 16 bits are understood")
    return (values.astype(np.uint32) >> 8).astype(np.uint8)


def _short(error: BaseException) -> str:
    return str(error).splitlines()[0][:160] if str(error) else type(error).__name__
