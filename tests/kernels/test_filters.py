"""A filter never denies a key that was put in, and seldom takes an absent one for present."""

from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from etl.kernels.compiling import Bools, UInt64s
from etl.kernels.filters import build_filter, empty_filter, filter_words, may_hold

UNIFORM = np.random.default_rng(11).integers(0, 2**64 - 1, 60_000, dtype=np.uint64)
HASHES = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 2**32, 2**63, 2**64 - 1]))


def ask(segments: list[list[UInt64s]], segment: list[int], hashes: UInt64s, valid: Bools | None = None) -> list[bool]:
    """Ask filters by segment; None of them is copied, so the lists keep them alive."""
    filters = [one for filters_of_segment in segments for one in filters_of_segment]
    starts = np.cumsum([0, *(len(filters_of_segment) for filters_of_segment in segments)])
    addresses = np.array([one.ctypes.data if one.size else 0 for one in filters], np.uint64)
    words = np.array([one.size for one in filters], np.int64)
    held = may_hold(starts, addresses, words, np.array(segment, np.int32), hashes, valid)
    assert held.dtype == np.bool_
    return list(held.tolist())


@given(st.lists(HASHES, max_size=200), st.integers(1, 16))
def test_what_was_put_in_is_found(keys: list[int], bits_per_key: int) -> None:
    hashes = np.array(keys, np.uint64)
    words = filter_words(len(keys), bits_per_key)
    assert all(ask([[build_filter(hashes, words)]], [0] * len(keys), hashes))


ONE_SEGMENT = (UNIFORM >> np.uint64(12)) | np.uint64(0xABC << 52)


@pytest.mark.parametrize("hashes", [UNIFORM, ONE_SEGMENT], ids=["all hashes", "hashes that share their high bits"])
@pytest.mark.parametrize(("bits_per_key", "expected"), [(8, 0.029), (10, 0.0105), (12, 0.0042)])
def test_few_absent_keys_pass(hashes: UInt64s, bits_per_key: int, expected: float) -> None:
    """The expected share is that of ideal hashes: a Poisson number of keys in each cell."""
    present, absent = hashes[:10_000], hashes[10_000:]
    built = build_filter(present, filter_words(present.size, bits_per_key))
    share = np.mean(ask([[built]], [0] * absent.size, absent))
    assert 0.8 * expected < share < 1.2 * expected


def test_the_bits_of_a_hash_never_change() -> None:
    """Filters are stored: if this fails, the code is wrong, not the numbers."""
    built = build_filter(np.array([0, 0x0123456789ABCDEF, 2**64 - 1], np.uint64), 24)
    assert built.reshape(3, 8).tolist() == GOLDEN


GOLDEN = [
    [0x800000000000, 0x40000000000000, 0x10000000, 0x80, 0x800000000000000, 0x2000000000, 0x8, 0x40000000000],
    [0x20000000, 0x40000000000, 0x400000000000000, 0x800000000, 0x1000000000, 0x40000000, 0x1, 0x4000],
    [0x100000000, 0x1000000000000, 0x40000, 0x2000000, 0x8000000, 0x10000000, 0x800000, 0x10000000],
]


def test_a_row_asks_all_filters_of_its_segment_and_no_other() -> None:
    first, second, third = (build_filter(UNIFORM[start : start + 10], 80) for start in (0, 10, 20))
    segments = [[first, second], [], [third]]
    for key, owner in ((0, 0), (10, 0), (20, 2)):
        held = ask(segments, [-1, 0, 1, 2], np.repeat(UNIFORM[key], 4))
        assert held == [owner == segment for segment in (-1, 0, 1, 2)]


def test_a_filter_that_is_not_in_memory_may_hold_anything() -> None:
    """An address of 0 stands for it, alone or beside others; a segment without entries holds nothing."""
    missing, built = np.empty(0, np.uint64), build_filter(UNIFORM[:1], 8)
    segments = [[missing], [built, missing], [built], []]
    assert ask(segments, [0, 1, 2, 3, -1], np.repeat(UNIFORM[50], 5)) == [True, True, False, False, False]


def test_null_keys_are_held_nowhere() -> None:
    built = build_filter(UNIFORM[:2], 8)
    assert ask([[built]], [0, 0], UNIFORM[:2], np.array([True, False])) == [True, False]


def test_a_filter_works_at_any_address(tmp_path: Path) -> None:
    """A read-only memory map, and a start that is on no cache line."""
    built = build_filter(UNIFORM[:1000], filter_words(1000))
    np.concatenate([[np.uint64(7)], built]).astype(np.uint64).tofile(tmp_path / "filter")
    mapped = np.memmap(tmp_path / "filter", np.uint64, mode="r")[1:]
    asked = UNIFORM[:5000]
    assert mapped.ctypes.data % 64 != 0
    assert ask([[mapped]], [0] * 5000, asked) == ask([[built]], [0] * 5000, asked)


def test_cells_lie_on_cache_lines() -> None:
    assert [empty_filter(words).ctypes.data % 64 for words in (8, 16, 800, 80_000)] == [0] * 4
    assert not empty_filter(800).any()


def test_a_filter_has_whole_cells() -> None:
    assert [filter_words(keys) for keys in (0, 1, 51, 52, 102, 103, 100_000)] == [8, 8, 8, 16, 16, 24, 15_632]
    assert filter_words(100, bits_per_key=1) == 8
    for words in (0, 4, 12, -8):
        with pytest.raises(ValueError, match=f"a filter of {words} words: it has whole cells of 8"):
            build_filter(UNIFORM[:1], words)
    with pytest.raises(OverflowError, match="at most 4294967296 cells"):
        empty_filter(8 * 2**32 + 8)
    with pytest.raises(ValueError, match="a filter of -1 keys at 10 bits"):
        filter_words(-1)
    with pytest.raises(ValueError, match="a filter of 5 keys at 0 bits"):
        filter_words(5, 0)


def test_a_directory_that_leads_astray_is_refused() -> None:
    built = build_filter(UNIFORM[:1], 16)
    address, words = np.array([built.ctypes.data], np.uint64), np.array([16])
    segment, starts = np.zeros(1, np.int32), np.array([0, 1])
    with pytest.raises(ValueError, match="filter 0 has 12 words"):
        may_hold(starts, address, np.array([12]), segment, UNIFORM[:1])
    with pytest.raises(ValueError, match="1 addresses for 2 filters"):
        may_hold(starts, address, np.array([16, 16]), segment, UNIFORM[:1])
    with pytest.raises(ValueError, match=r"filters_from must ascend within 0\.\.1"):
        may_hold(np.array([0, 2]), address, words, segment, UNIFORM[:1])
    with pytest.raises(IndexError, match="row 0 is in segment 1, but there are 1 segments"):
        may_hold(starts, address, words, segment + np.int32(1), UNIFORM[:1])
    with pytest.raises(ValueError, match="mask has 2 values for 1 rows"):
        may_hold(starts, address, words, segment, UNIFORM[:1], np.ones(2, np.bool_))
