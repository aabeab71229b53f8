"""The reference of commands says what `--help` says."""

import re

import pytest

from docs.tools.commands import commands, options
from jaxpipe.cli.main import main

HELP = {"-h", "--help"}


@pytest.mark.parametrize("name", commands())
def test_the_reference_has_the_options_that_help_has(name: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), "--help"])
    assert ended.value.code == 0
    printed = re.findall(
        r"^[│ ] (--?[a-z][a-z-]*(?: [^,\s]+, --[a-z-]+)?)", capsys.readouterr().out, re.MULTILINE
    )
    flags = {flag for line in printed for flag in re.findall(r"--?[a-z][a-z-]*", line)} - HELP
    typed = {
        flag for each in options(commands()[name]) for flag in re.findall(r"`(-[^`]*)`", each.typed)
    }
    assert typed == flags
