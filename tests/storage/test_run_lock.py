"""One run at a time; a run that was overtaken finds out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from etl.errors import Fenced, PipelineBusy, StorageError
from etl.storage.run_lock import run_of


def test_runs_one_after_the_other_are_numbered(tmp_path: Path) -> None:
    for number in range(1, 9):
        with run_of("orders", tmp_path) as run:
            assert run.number == number
            run.check()
    assert [file.stem for file in sorted((tmp_path / "numbers").iterdir())] == [f"{n:08d}" for n in range(5, 9)]


def test_the_second_of_two_is_sent_away_and_told_who_is_there(tmp_path: Path) -> None:
    with run_of("orders", tmp_path) as run:
        with pytest.raises(PipelineBusy, match=rf"orders is being run by process {os.getpid()} on .*delete .*/lock"):
            run_of("orders", tmp_path).__enter__()
        run.check()
    with run_of("orders", tmp_path) as run:
        assert run.number == 2, "the one that was sent away took no number"


def test_a_run_whose_lock_was_taken_away_is_fenced(tmp_path: Path) -> None:
    with run_of("orders", tmp_path) as first:
        (tmp_path / "lock").unlink()
        with run_of("orders", tmp_path) as second:
            second.check()
            with pytest.raises(
                Fenced, match=rf"run 1 of pipeline orders was overtaken by run 2 \(process {os.getpid()}"
            ):
                first.check()
        with pytest.raises(Fenced):
            first.check()


def test_a_run_that_slept_through_many_others_is_fenced(tmp_path: Path) -> None:
    with run_of("orders", tmp_path) as sleeper:
        (tmp_path / "lock").unlink()
        for _ in range(10):
            with run_of("orders", tmp_path):
                pass
        with pytest.raises(Fenced, match="overtaken by run 11"):
            sleeper.check()


def test_an_error_in_the_run_frees_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), run_of("orders", tmp_path):
        1 / 0  # noqa: B018
    with run_of("orders", tmp_path) as run:
        run.check()


def test_an_error_of_a_run_that_was_overtaken_is_explained_by_that(tmp_path: Path) -> None:
    def stumble() -> None:
        with run_of("orders", tmp_path):
            (tmp_path / "lock").unlink()
            with run_of("orders", tmp_path):
                pass
            raise FileNotFoundError("the other run has deleted it")

    with pytest.raises(Fenced, match="overtaken by run 2") as raised:
        stumble()
    assert isinstance(raised.value.__context__, FileNotFoundError)


def test_the_lock_says_who_holds_it_also_after_a_longer_name(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("x" * 1_000)
    with run_of("orders", tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["process"] == os.getpid()


def test_a_holder_that_has_not_signed_yet_is_another_process(tmp_path: Path) -> None:
    with run_of("orders", tmp_path):
        os.truncate(tmp_path / "lock", 0)
        with pytest.raises(PipelineBusy, match="run by another process"):
            run_of("orders", tmp_path).__enter__()


def test_a_place_that_cannot_be_locked_is_named(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(StorageError, match=r"cannot lock .*/lock"):
        run_of("orders", tmp_path).__enter__()
