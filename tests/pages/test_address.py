"""A selection in the address names its images, and nothing else reads as one."""

import base64
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pages.features.address import LONGEST, pack, unpack
from pages.features.data import Space


def made(count, tasks=("digits", "signs")):
    points = {"merged": np.zeros((count, 2))}
    index = np.arange(count)
    return Space("made", {}, tasks, index % len(tasks), index, np.zeros(count, int), points)


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_what_is_packed_comes_back(case):
    count, rows = case
    assert unpack(pack(sorted(rows), made(count)), made(count)) == tuple(sorted(rows))


def test_the_text_needs_no_quoting_and_is_short():
    some = np.random.default_rng(0).choice(256, 60, replace=False)
    text = pack(sorted(some.tolist()), made(256))
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
    assert len(text) < 70


@pytest.mark.parametrize("other", [made(9), made(11), made(10, ("digits", "scenes")), made(10, ("digits",))])
def test_other_images_are_not_meant(other):
    assert unpack(pack([1, 2], made(10)), other) is None


@pytest.mark.parametrize("body", ["", "!", "AAAA", "é", "A" * (LONGEST + 1)])
def test_what_was_never_packed_selects_nothing(body):
    name = pack([1], made(10)).partition(".")[0]
    assert unpack(f"{name}.{body}", made(10)) is None


def test_more_bits_than_images_select_nothing():
    name = pack([1], made(10)).partition(".")[0]
    for raw in (b"\xff\xff", bytes(10**6)):
        deflate = zlib.compressobj(9, wbits=-15)
        body = base64.urlsafe_b64encode(deflate.compress(raw) + deflate.flush()).decode().rstrip("=")
        assert unpack(f"{name}.{body}", made(10)) is None
