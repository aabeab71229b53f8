"""The page from an instruct model to an answer: its commands run, and print what it shows."""

import re
import runpy
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from jaxpipe.cli.main import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/guide/instruct-model.md"


def sessions(text: str) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """Yield the words of each command of a page, and the lines that it shows below."""
    for block in re.findall(r"^```console\n(.*?)^```", text, re.M | re.S):
        for session in re.split(r"^\$ ", block.replace("\\\n", ""), flags=re.M)[1:]:
            command, *shown = session.splitlines()
            yield shlex.split(command), shown


@pytest.mark.slow
@pytest.mark.mpi
def test_the_commands_of_the_page_run_and_print_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = list(sessions(PAGE.read_text()))
    assert [words[1] for words, _ in commands if words[0] == "jaxpipe"] == [
        "import", "data", "train", "export", "generate",
    ]  # fmt: skip
    for words, shown in commands:
        _run(words, monkeypatch)
        printed = capfd.readouterr().out
        assert [line for line in shown if line not in printed.splitlines()] == [], printed


def _run(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if words[0] == "jaxpipe":
        assert main(list(words[1:])) == 0, words
    elif words[0] == "python":
        monkeypatch.setattr(sys, "argv", words[1:])
        runpy.run_path(str(ROOT / words[1]), run_name="__main__")
    else:
        assert words[:2] == ["head", "-n"], words
        print(*Path(words[3]).read_text().splitlines()[: int(words[2])], sep="\n")  # noqa: T201
