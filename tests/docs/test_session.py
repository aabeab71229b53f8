"""The recorded session of a newcomer, and the shell that records it."""

import re
import shlex
from pathlib import Path

import pytest

from docs.tools.commands import commands as known_commands
from docs.tools.commands import options
from docs.tools.session import TRANSCRIPT, commands, transcript

TEN_MINUTES_S = 600


def test_the_session_has_the_commands_that_are_typed_in_order() -> None:
    typed = re.findall(r"^\$ (.*?)(?:    # \d+ s)?$", TRANSCRIPT.read_text(), re.M)
    assert tuple(typed) == commands(), "record it again: python -m docs.tools.session"


def test_it_takes_ten_minutes_at_most_unless_the_machine_is_busy() -> None:
    text = TRANSCRIPT.read_text()
    ((in_all, cores, load),) = re.findall(
        r"^# (\d+) s in all \(measured on (\d+) cores with a load of (\d+)\)$", text, re.M
    )
    # On a machine that does several times as much at the same time, seconds are not comparable.
    assert int(in_all) <= TEN_MINUTES_S or int(load) > 4 * int(cores)
    assert "2 ranks, 2 stages x 1 replica" in text
    losses = re.search(r"^held-out loss ([\d.]+) -> ([\d.]+),", text, re.M)
    assert losses is not None
    assert float(losses[2]) < float(losses[1])
    assert "A plan is" in text.rpartition("$ jaxpipe generate")[2]


def test_it_names_no_place_of_its_machine() -> None:
    text = TRANSCRIPT.read_text()
    assert not re.search(r"(?<![\w.])/(?:tmp|home|root|work|opt)/|https?://", text)
    assert "\x1b" not in text


def test_its_commands_exist_with_their_options() -> None:
    for line in commands():
        words = shlex.split(line)
        if words[0] != "jaxpipe":
            continue
        name = " ".join(words[1:3]) if words[1] == "data" else words[1]
        known = {
            flag
            for each in options(known_commands()[name])
            for flag in re.findall(r"`(-[^`]*)`", each.typed)
        }
        assert {word for word in words if word.startswith("--")} <= known, line


def test_one_shell_runs_all_commands_and_times_them(tmp_path: Path) -> None:
    typed = (
        "mkdir a",
        "cd a",
        "word=$(basename REPOSITORY)",
        "echo $word; pwd",
        "sleep 1; echo last",
    )
    shown = transcript(tmp_path, repository=Path("/somewhere/jaxpipe"), typed=typed)
    assert re.fullmatch(
        r"\$ mkdir a\n\n?\$ cd a\n\n?\$ word=\S+ REPOSITORY\)\n\n?"
        r"\$ echo \$word; pwd\njaxpipe\na\n\n?\$ sleep 1; echo last    # 1 s\nlast\n\n?"
        r"# 1 s in all \(measured on \d+ cores with a load of \d+\)\n",
        shown,
    ), shown


def test_a_command_that_fails_ends_the_recording(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="`false` ended with exit code 1"):
        transcript(tmp_path, repository=tmp_path, typed=("true", "false", "touch never"))
    with pytest.raises(RuntimeError, match=r"`exit 3` took longer than .* or ended the shell"):
        transcript(tmp_path, repository=tmp_path, typed=("exit 3", "touch never"))
    assert not (tmp_path / "never").exists()
