"""One progress line: in place on a terminal, a line now and then in a log, nothing on stdout."""

import io
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.run.terminal.console import PrintableConsole
from jaxpipe.run.terminal.progress import (
    LogLines,
    Pace,
    Progress,
    TerminalLine,
    duration,
    left_text,
)
from jaxpipe.run.terminal.rank_progress import (
    clear_progress,
    rank_progress,
    read_progress,
    shown_ranks,
    write_progress,
)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def training(step: int, *, is_logged: bool = False) -> Progress:
    return Progress(what="training", done=step, total=600, unit="step", is_logged=is_logged)


@given(
    step_s=st.floats(1e-3, 1e3),
    steps=st.lists(st.integers(1, 50), min_size=3, max_size=60),
    first_s=st.floats(0.0, 1e4),
)
def test_an_even_pace_is_found_whatever_came_first(
    step_s: float, steps: list[int], first_s: float
) -> None:
    pace, done, at_s = Pace(), 0, 0.0
    pace.update(done, at_s=at_s)
    for index, number in enumerate(steps):
        done += number
        at_s += step_s * number + (first_s if index == 0 else 0.0)
        pace.update(done, at_s=at_s)
    assert pace.left_s(done + 100) == pytest.approx(100 * step_s, rel=1e-4)


def test_one_slow_step_changes_the_estimate_by_its_share() -> None:
    pace = Pace()
    for step in range(40):
        pace.update(step, at_s=float(step) + (20.0 if step > 35 else 0.0))
    # A step takes one second; 20 more in the last thirty are two thirds of a second each.
    assert pace.left_s(139) == pytest.approx(100 * (1 + 20 / 29), rel=0.05)


def test_a_pace_begins_again_with_its_activity_and_knows_nothing_at_first() -> None:
    pace = Pace()
    pace.update(500, at_s=0.0)
    assert pace.left_s(600) is None
    pace.update(501, at_s=1.0)
    pace.update(1, at_s=2.0)
    assert pace.left_s(600) is None


def test_a_log_has_a_line_in_ten_seconds_at_most() -> None:
    clock, file = Clock(), io.StringIO()
    lines = LogLines(file, clock=clock)
    for step in range(100):
        lines.update(training(step))
        clock.now_s += 0.5
    lines.close()
    printed = file.getvalue().splitlines()
    assert len(printed) == 4
    assert printed[0] == "training: step 20 of 600, 10 s, about 5 min left"


def test_a_log_has_no_line_of_what_is_short_or_has_its_own() -> None:
    clock, file = Clock(), io.StringIO()
    lines = LogLines(file, clock=clock)
    lines.update(Progress(what="simulating"))
    clock.now_s += 9.9
    lines.tick()
    lines.update(training(1, is_logged=True))
    clock.now_s += 100.0
    lines.tick()
    assert file.getvalue() == ""


def test_a_log_shows_that_time_passes_where_nothing_is_counted() -> None:
    clock, file = Clock(), io.StringIO()
    lines = LogLines(file, clock=clock)
    lines.update(Progress(what="simulating a step \x1b[2J"))
    for _ in range(25):
        clock.now_s += 1.0
        lines.tick()
    assert file.getvalue() == (
        "simulating a step \\x1b[2J, 10 s\nsimulating a step \\x1b[2J, 20 s\n"
    )


def test_a_search_that_ends_at_a_time_knows_what_is_left() -> None:
    search = Progress(what="searching", detail="7 plans", done=12.0, total=30.0, unit="s")
    assert (search.text, left_text(search, Pace())) == ("searching: 7 plans", "about 18 s left")
    assert left_text(Progress(what="simulating"), Pace()) == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0 s"), (99.4, "99 s"), (100.0, "2 min"), (5400.0, "1.5 h")]
)
def test_durations_are_those_of_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_terminal_has_one_line_that_is_gone_in_the_end() -> None:
    clock, file = Clock(), io.StringIO()
    console = PrintableConsole(file=file, force_terminal=True, width=100)
    line = TerminalLine(console, ticks=False, clock=clock)
    for step in range(4):
        line.update(training(step))
        clock.now_s += 1.0
        line.tick()
    drawn = file.getvalue()
    line.close()
    assert "training: step 3 of 600" in drawn
    assert "about 10 min left" in drawn
    erase_line = "\x1b[2K"
    assert file.getvalue()[len(drawn) :].count(erase_line) >= 1
    assert file.getvalue().rpartition(erase_line)[2].strip("\x1b[?25h\r\n") == ""


PARENT = """
import sys
from pathlib import Path
from jaxpipe.run.terminal.rank_progress import shown_ranks
from jaxpipe.runtime.process.mpirun import run_child
with shown_ranks(Path(sys.argv[2]), "starting") as (output, show):
    run_child([sys.executable, "-c", *sys.argv[1:]], output=output, poll=show)
"""
CHILD = """
import sys, time
from pathlib import Path
from jaxpipe.run.terminal.progress import Progress
from jaxpipe.run.terminal.rank_progress import write_progress
for step in range(1, 6):
    progress = Progress(what="training", done=step, total=5, unit="step")
    write_progress(Path(sys.argv[1]), progress)
    print(f"line {step}", flush=True)
    time.sleep(0.3)
"""


def on_terminal(command: list[str]) -> str:
    """Return what a command shows on a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown, end_s = b"", time.monotonic() + 60.0
        while time.monotonic() < end_s:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            shown += piece
        process.wait(10.0)
    os.close(ours)
    return shown.decode()


def test_lines_of_ranks_appear_whole_above_the_line(tmp_path: Path) -> None:
    shown = on_terminal([sys.executable, "-c", PARENT, CHILD, str(tmp_path)])
    assert re.search(r"training: step \d of 5", shown)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", shown).replace("\r", "\n")
    assert [line for line in plain.split("\n") if line.startswith("line")] == [
        f"line {step}" for step in range(1, 6)
    ]


def test_in_a_pipe_the_lines_of_ranks_are_all_there_is(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, CHILD, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "".join(f"line {step}\n" for step in range(1, 6))
    # On a machine so busy that it takes ten seconds, the log has its line.
    lines = done.stderr.splitlines()
    assert [line for line in lines if not line.startswith(("starting", "training: step"))] == []


def test_rank_0_says_how_far_it_is_and_others_do_not(tmp_path: Path) -> None:
    with rank_progress(tmp_path, rank=1, has_launcher=True) as say:
        say(training(7))
    assert read_progress(tmp_path) is None
    with rank_progress(tmp_path, rank=0, has_launcher=True) as say:
        say(training(7))
    assert read_progress(tmp_path) == training(7)
    with shown_ranks(tmp_path, "starting the ranks"):
        assert read_progress(tmp_path) is None, "that of an earlier run"


def test_a_file_that_is_none_is_no_progress(tmp_path: Path) -> None:
    write_progress(tmp_path, training(1))
    (file,) = (tmp_path / "watch").iterdir()
    file.write_text("{")
    assert read_progress(tmp_path) is None
    clear_progress(tmp_path)
    clear_progress(tmp_path)
    assert list((tmp_path / "watch").iterdir()) == []


def test_a_folder_that_cannot_be_written_costs_only_the_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    write_progress(tmp_path / "file", training(1))
    assert read_progress(tmp_path / "file") is None
