"""The hash is stable, agrees with an independent reckoning in Python integers, and spreads all its bits."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from etl.kernels.columns import bytes_view, fixed_view, view
from etl.kernels.compiling import Bytes, UInt64s
from etl.kernels.hashing import hash_columns, proves_equality

WORD = 2**64 - 1
LEFT, RIGHT, LENGTH = 0x13198A2E03707345, 0xA4093822299F31D1, 0x082EFA98EC4E6C89


def hashes_of(*arrays: pa.Array) -> UInt64s:
    return hash_columns([view(array) for array in arrays]).hashes


# A change of these values makes every stored relation unreadable: never update them, add a new hash instead.
def test_golden_values() -> None:
    assert [hex(value) for value in hashes_of(pa.array([0, 1, -1, 2**40]))] == GOLDEN_INTEGERS
    texts = ["", "a", "abc", "headrace", "customer-00000042", "x" * 40]
    assert [hex(value) for value in hashes_of(pa.array(texts))] == GOLDEN_TEXTS
    composite = hashes_of(pa.array([7]), pa.array(["seven"]), pa.array([7]).cast(pa.decimal128(38, 2)))
    assert hex(composite[0]) == GOLDEN_COMPOSITE


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=70), max_size=8), st.integers(0, 3))
def test_bytes_agree_with_the_reckoning_in_python(values: list[Any], skipped: int) -> None:
    array = pa.array([b"skipped"] * skipped + values, pa.binary()).slice(skipped)
    assert hashes_of(array).tolist() == [reckoned_bytes(value) for value in values]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8))
def test_integers_agree_with_the_reckoning_in_python(values: list[Any]) -> None:
    assert hashes_of(pa.array(values, pa.int64())).tolist() == [reckoned_word(value & WORD) for value in values]


def test_the_hash_depends_on_the_value_not_on_its_container() -> None:
    numbers = pa.array([5, 0, 127, None, -5, -128])
    for narrow in (pa.int8(), pa.int16(), pa.int32()):
        assert_same(numbers, numbers.cast(narrow))
    small = pa.array([5, 0, 255])
    for unsigned in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()):
        assert_same(small, small.cast(unsigned))
    texts = pa.array(["", None, "a", "customer-00000042"])
    for other in (pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()):
        assert_same(texts, texts.cast(other))
    assert_same(texts, texts.dictionary_encode())


def test_numpy_columns_hash_like_arrow_columns() -> None:
    numbers = np.array([3, -3, 2**40])
    assert hash_columns([fixed_view(numbers)]).hashes.tolist() == hashes_of(pa.array(numbers)).tolist()
    offsets, data = np.array([0, 1, 1, 4]), np.frombuffer(b"abcd", np.uint8)
    expected = hashes_of(pa.array(["a", "", "bcd"])).tolist()
    assert hash_columns([bytes_view(offsets, data)]).hashes.tolist() == expected
    decimals = pa.array([1, -1]).cast(pa.decimal128(38, 0))
    words = np.array([[1, 0], [-1, -1]])
    assert hash_columns([fixed_view(words)]).hashes.tolist() == hashes_of(decimals).tolist()


def test_nulls_are_told_apart_and_hash_alike_whatever_lies_under_them() -> None:
    offsets, mask = np.array([0, 1, 2, 2]), np.array([True, False, True])
    one = hash_columns([bytes_view(offsets, np.frombuffer(b"ab", np.uint8), mask)])
    other = hash_columns([bytes_view(offsets, np.frombuffer(b"az", np.uint8), mask)])
    assert one.valid is not None
    assert one.valid.tolist() == [True, False, True]
    assert one.hashes.tolist() == other.hashes.tolist()
    assert one.hashes[2] != one.hashes[1]


def test_a_null_in_any_column_makes_the_key_invalid() -> None:
    keys = hash_columns([view(pa.array([1, None, 3, 4])), view(pa.array(["a", "b", None, "d"]))])
    assert keys.valid is not None
    assert keys.valid.tolist() == [True, False, False, True]
    assert hash_columns([view(pa.array([1])), view(pa.array(["a"]))]).valid is None


def test_columns_keep_their_borders_and_their_order() -> None:
    border = hashes_of(pa.array(["a", "ab", "abc", ""]), pa.array(["bc", "c", "", "abc"]))
    assert len(set(border.tolist())) == 4
    assert hashes_of(pa.array([1]), pa.array([2]))[0] != hashes_of(pa.array([2]), pa.array([1]))[0]
    assert hashes_of(pa.array([1]), pa.array([1]))[0] != hashes_of(pa.array([1]))[0]


def test_keys_that_cannot_be_hashed_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one column"):
        hash_columns([])
    with pytest.raises(ValueError, match="key column 1 has 2 rows, column 0 has 1"):
        hash_columns([view(pa.array([1])), view(pa.array([1, 2]))])


def test_equality_is_proved_only_by_a_permutation() -> None:
    wide, narrow, unsigned = (
        fixed_view(np.arange(2)),
        fixed_view(np.zeros(2, np.int8)),
        fixed_view(np.zeros(2, "u8")),
    )
    texts, decimals = view(pa.array(["a", "b"])), view(pa.array([1, 2]).cast(pa.decimal128(38)))
    assert proves_equality([wide])
    assert proves_equality([wide], [narrow])
    assert proves_equality([unsigned], [unsigned])
    assert proves_equality([wide], [fixed_view(np.zeros(2, np.uint32))])
    assert not proves_equality([wide], [unsigned])
    assert not proves_equality([wide, wide])
    assert not proves_equality([texts])
    assert not proves_equality([wide], [decimals])


SPREAD_EXAMPLES = {
    "sequential": pa.array(np.arange(65536)),
    "strided by a page": pa.array(np.arange(65536) * 4096),
    "strided by 2**32": pa.array(np.arange(65536) * 2**32),
    "negative": pa.array(-np.arange(65536)),
    "short texts": pa.array([str(number) for number in range(65536)]),
    "similar texts": pa.array([f"customer-{number:08d}" for number in range(65536)]),
    "long common tail": pa.array([f"{number:06d}" + "x" * 40 for number in range(65536)]),
    "decimals": pa.array(np.arange(65536)).cast(pa.decimal128(38, 0)),
}


@pytest.mark.parametrize("name", SPREAD_EXAMPLES)
@pytest.mark.parametrize("shift", [0, 24, 33, 54], ids=lambda shift: f"bits from {shift}")
def test_every_part_of_the_hash_spreads_evenly(name: str, shift: int) -> None:
    hashes = hashes_of(SPREAD_EXAMPLES[name])
    counts = np.bincount(((hashes >> np.uint64(shift)) & np.uint64(1023)).astype(np.int64), minlength=1024)
    # Chi-square with 1,023 degrees of freedom: mean 1,023, deviation 45; seven leave no room for luck.
    assert 1023 - 7 * 45 < ((counts - 64) ** 2 / 64).sum() < 1023 + 7 * 45
    assert len(np.unique(hashes)) == len(hashes)


@pytest.mark.parametrize("length", [1, 3, 4, 7, 8, 15, 16, 17, 33])
def test_one_changed_bit_changes_half_of_the_hash(length: int) -> None:
    start = np.random.default_rng(length).integers(0, 256, (200, length), dtype=np.uint8)
    for bit in range(0, 8 * length, 5):
        changed = start.copy()
        changed[:, bit // 8] ^= np.uint8(1 << bit % 8)
        difference = hash_rows(start) ^ hash_rows(changed)
        flips = np.unpackbits(difference.view(np.uint8)).reshape(200, 64)
        assert 30 < flips.sum(axis=1).mean() < 34
        assert flips.mean(axis=0).min() > 0.25
        assert flips.mean(axis=0).max() < 0.75


def hash_rows(matrix: Bytes) -> UInt64s:
    rows, length = matrix.shape
    return hash_columns([bytes_view(np.arange(rows + 1) * length, matrix.reshape(-1))]).hashes


def assert_same(one: pa.Array, other: pa.Array) -> None:
    assert hashes_of(one).tolist() == hashes_of(other).tolist()


def reckoned_word(word: int) -> int:
    word = (word + 0x9E3779B97F4A7C15) & WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
    return word ^ (word >> 31)


def reckoned_bytes(value: bytes) -> int:
    def number(part: bytes) -> int:
        return int.from_bytes(part, "little")

    def fold(left: int, right: int) -> int:
        return ((left * right) & WORD) ^ ((left * right) >> 64)

    state, length, rest = 0x243F6A8885A308D3, len(value), value
    if length > 16:
        left, right = number(value[-16:-8]), number(value[-8:])
        while length > 16:
            state = fold(number(rest[:8]) ^ LEFT, number(rest[8:16]) ^ state)
            rest, length = rest[16:], length - 16
    elif length >= 8:
        left, right = number(value[:8]), number(value[-8:])
    elif length >= 4:
        left, right = number(value[:4]), number(value[-4:])
    elif length > 0:
        left, right = value[0] | value[length // 2] << 8, value[-1]
    else:
        left = right = 0
    return reckoned_word(fold(left ^ LEFT, right ^ state ^ RIGHT) ^ (length * LENGTH & WORD))


GOLDEN_INTEGERS = [
    "0xe220a8397b1dcdaf",
    "0x910a2dec89025cc1",
    "0xe4d971771b652c20",
    "0x1fdd7128f310c389",
]
GOLDEN_TEXTS = [
    "0x35fd9e09cd1d2c30",
    "0x285a493ea9ca90cd",
    "0xe4f73a7a235b327b",
    "0x95247bedc9911ede",
    "0xca94e2550125e232",
    "0x5c8c73fef42b6537",
]
GOLDEN_COMPOSITE = "0x6fb9bbcd5d731ec4"
