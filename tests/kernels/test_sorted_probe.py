"""The sorted probe agrees with nested loops, whatever the distribution, and reads a memory map as it is."""

from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from etl.kernels.sorted_probe import sorted_probe
from tests.kernels.pairs import pairs_by_definition, taken

HASHES = st.one_of(st.integers(0, 5), st.integers(0, 2**64 - 1), st.sampled_from([2**63, 2**64 - 1]))


@given(st.lists(HASHES, max_size=40), st.lists(st.tuples(HASHES, st.booleans()), max_size=12), st.integers(1, 7))
def test_probe_finds_the_pairs_by_definition(stored: list[int], probe: list[tuple[int, bool]], limit: int) -> None:
    stored = sorted(stored)
    hashes = [key_hash for key_hash, _ in probe] + stored[:3]
    valid = [is_valid for _, is_valid in probe] + [True] * len(stored[:3])
    expected = [pair for pair in pairs_by_definition(hashes, stored) if valid[pair[0]]]
    chunks = sorted_probe(np.array(stored, np.uint64), np.array(hashes, np.uint64), np.array(valid, np.bool_), limit)
    assert taken(chunks, limit) == expected


GENERATOR = np.random.default_rng(3)
UNIFORM = GENERATOR.integers(0, 2**64 - 1, 20_000, dtype=np.uint64)
DISTRIBUTIONS = {
    "uniform": UNIFORM,
    "one partition of the range": UNIFORM >> np.uint64(6),
    "crowded at the low end": np.concatenate([UNIFORM >> np.uint64(40), UNIFORM[:10]]),
    "crowded at the high end": ~np.concatenate([UNIFORM >> np.uint64(40), UNIFORM[:10]]),
    "powers": np.uint64(1) << np.repeat(np.arange(64, dtype=np.uint64), 300),
    "all the same": np.full(5000, 12345, np.uint64),
    "full range": np.append(UNIFORM, np.array([0, 2**64 - 1], np.uint64)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_large_arrays_agree_with_searchsorted(name: str) -> None:
    stored = np.sort(DISTRIBUTIONS[name])
    probe = np.concatenate([stored[::97], stored[::89] + np.uint64(1), UNIFORM[:50], stored[:1], stored[-1:]])
    first, last = np.searchsorted(stored, probe), np.searchsorted(stored, probe, side="right")
    expected_positions = np.repeat(np.arange(probe.size), last - first)
    positions, places = (np.concatenate(part) for part in zip(*sorted_probe(stored, probe), strict=True))
    assert np.array_equal(positions, expected_positions)
    assert np.array_equal(stored[places], probe[positions])
    assert np.array_equal(places, np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)]))


def test_a_read_only_memory_map_is_probed_where_it_lies(tmp_path: Path) -> None:
    np.sort(UNIFORM).tofile(tmp_path / "hashes")
    mapped = np.memmap(tmp_path / "hashes", np.uint64, mode="r")
    assert len(taken(sorted_probe(mapped, UNIFORM[:100]), 65536)) == 100


def test_nothing_gives_nothing() -> None:
    empty, some = np.empty(0, np.uint64), np.arange(3, dtype=np.uint64)
    assert list(sorted_probe(empty, some)) == []
    assert list(sorted_probe(some, empty)) == []
    with pytest.raises(ValueError, match="limit is 0"):
        sorted_probe(some, some, limit=0)
