"""The time left of a run, by a clock that the test sets."""

import logging

import pytest

from pathgp.runs import run as runs
from pathgp.runs.run import Progress, Run


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until `clock.now` is set."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(runs.time, "perf_counter", lambda: Clock.now)
    return Clock


def test_the_pace_leaves_out_the_first_steps_which_compile(clock):
    progress = Progress("solving", 100, is_shown=False)
    clock.now += 50
    progress.advance(10, "", float("inf"))
    assert progress.pace == 0
    clock.now += 4
    progress.advance(20, "", float("inf"))
    assert progress.pace == pytest.approx(0.2)


@pytest.mark.parametrize(("limit", "named"), [(float("inf"), False), (7.0, True), (50.0, False)])
def test_without_a_bar_the_time_left_is_logged_each_time_that_as_much_has_passed(clock, caplog, limit, named):
    progress = Progress("solving", 100, is_shown=False)
    with caplog.at_level(logging.INFO, "pathgp.progress"):
        for _ in range(41):
            progress.advance(1, "residual 1e-3", limit)
            clock.now += 0.5
    said = [record.getMessage() for record in caplog.records]
    assert [message.split()[1] for message in said] == [
        "8",
        "16",
        "32",
    ]  # 3.5, 7.5, 15.5 s
    assert all("solving" in message and "residual 1e-3" in message for message in said)
    assert "46 s" in said[0]  # 92 steps of half a second
    assert ("7 s" in said[0]) is named


def test_a_bar_shows_the_time_left_and_nothing_is_logged(clock, capsys, caplog):
    progress = Progress("solving", 4, is_shown=True)
    with caplog.at_level(logging.INFO, "pathgp.progress"):
        for _ in range(3):
            progress.advance(1, "residual 1e-3", float("inf"))
            clock.now += 30
    progress.close()
    shown = capsys.readouterr().err
    assert "solving" in shown
    assert "residual 1e-3, 30 s left" in shown
    assert not caplog.records


def test_a_time_limit_includes_what_precedes_the_steps_and_keeps_time_for_the_last(clock):
    run = Run()
    clock.now += 10  # prior draws
    with run.started("SAP", 100, max_seconds=60):
        assert run.seconds == 0
        assert run.seconds_left() == 50
        for _ in range(3):
            run.report(1, 1, 0.1, lambda: None, "")
            clock.now += 2
        assert run.seconds == 6
        assert run.seconds_left() == 44
        assert run.seconds_left(reserved_steps=5) == pytest.approx(44 - 5 * 3)  # 2 steps in 6 seconds
    assert Run().seconds_left() == float("inf")
