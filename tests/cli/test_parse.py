"""A mistake in the options of a command is one line; options and `--help` work as before."""

import re
import sys
from pathlib import Path

import pytest
import tyro

from jaxpipe.cli.main import main
from jaxpipe.cli.parse import in_words, parse
from jaxpipe.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "c.toml", "--jsn"), "unrecognized options: --jsn"),
        (("plan", "--mdel", "tiny"), r"did you mean `--model`\?"),
        (("train", "c.toml", "--st", "a.b=1"), r"did you mean `--set`\?"),
        (("launch", "c.toml", "--target", "slrum"), "invalid choice 'slrum' for .*'slurm'"),
        (("train",), "missing from jaxpipe train: PATH"),
        (("train", "c.toml", "--set"), "missing value for argument '--set'"),
        (("topo", "show", "laptop", "--colour", "red"), "unrecognized options: --colour, red"),
        (("topo", "shw"), r"no command `topo shw`; did you mean `topo show`\?"),
    ],
)
def test_a_mistake_is_one_line(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert re.search(said, printed.err), printed.err
    assert "--help`" in printed.err


@pytest.mark.parametrize("group", ["topo", "data"])
def test_a_group_alone_lists_its_commands(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([group]) == 2
    listed = capsys.readouterr().out
    assert main([group, "--help"]) == 0
    assert capsys.readouterr().out == listed
    assert f"  {group} " in listed


def test_help_is_printed_and_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "--help"])
    assert ended.value.code == 0
    assert "usage: jaxpipe train" in capsys.readouterr().out


@pytest.mark.parametrize(
    "box",
    [
        " Unrecognized options \n -------\n  Unrecognized options: --jsn  \n  -------\n"
        "  Perhaps you meant:  \n      --json, --no-json \n  -------\n  For full helptext\n\n",
        "\x1b[31m╭\x1b[0m\x1b[31m─\x1b[0m \x1b[31;1mUnrecognized\x1b[0m \x1b[31m──╮\x1b[0m\n"
        "\x1b[31m│\x1b[0m \x1b[mUnrecognized\x1b[0m\x1b[m options:\x1b[0m\x1b[m --jsn\x1b[0m │\n"
        "│ ───── │\n│ Perhaps you meant: │\n│     --json │\n╰─────╯\n",
    ],
    ids=["a terminal without Unicode", "a terminal with colours"],
)
def test_boxes_of_other_terminals(box: str) -> None:
    assert in_words(box) == "unrecognized options: --jsn; did you mean `--json`?"


def test_what_a_command_prints_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    def greet(name: tyro.conf.Positional[Path], *, times: int = 1) -> int:
        """Greet somebody."""
        for _ in range(times):
            sys.stdout.write(f"hello {name}\n")
        return 7

    assert parse(greet, ["ada", "--times", "2"], name="jaxpipe greet")() == 7
    assert capsys.readouterr().out == "hello ada\nhello ada\n"
    with pytest.raises(ConfigError, match=r"--times.*\(`jaxpipe greet --help` lists the options\)"):
        parse(greet, ["ada", "--times", "x"], name="jaxpipe greet")
