"""The entry of the command line: help by topic, versions, and commands that do not exist."""

import gc
import subprocess
import sys
from importlib import metadata

import pytest

from jaxpipe.cli.command_table import COMMANDS, TOPICS, Command, single_commands
from jaxpipe.cli.main import main, overview, with_exit_code


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_names_every_command_once_by_topic(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([flag]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line in TOPICS] == list(TOPICS)
    named = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert named == [name for commands in TOPICS.values() for name in commands]
    assert sorted(named) == sorted(COMMANDS)


@pytest.mark.parametrize("name", single_commands())
def test_the_table_has_the_first_line_of_every_command(name: str) -> None:
    command = single_commands()[name]
    function = command.load()
    assert command.first_line == (function.__doc__ or "").partition("\n")[0]


def test_calling_a_command_imports_no_other() -> None:
    code = (
        "import sys; from jaxpipe.cli.main import main\n"
        "assert main(['topo', 'list']) == 0\n"
        "print(*sorted(name for name in sys.modules if name.startswith('jaxpipe.cli.')))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    loaded = set(process.stdout.splitlines()[-1].split())
    others = {f"jaxpipe.cli.{command.target.partition(':')[0]}" for command in _others("topo")}
    assert "jaxpipe.cli.topo" in loaded
    assert loaded & others == set()


def test_a_command_visits_what_it_imports_rarely(capsys: pytest.CaptureFixture[str]) -> None:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    try:
        assert main(["--version"]) == 0
        assert gc.get_threshold()[0] >= 10_000
    finally:
        gc.set_threshold(*before)
    assert capsys.readouterr().out


def _others(module: str) -> list[Command]:
    return [each for each in single_commands().values() if not each.target.startswith(module)]


@pytest.mark.parametrize("width", [1, 60, 80, 200])
def test_help_fits_the_terminal(width: int) -> None:
    text = overview(width=width)
    commands = text[text.index("\nTrain\n") :].rpartition("\n\n")[0]
    assert max(map(len, commands.splitlines())) <= max(width, 28)
    assert "".join(overview(width=80).split()) == "".join(text.split())


def test_no_command_is_answered_with_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: jaxpipe" in capsys.readouterr().out


def test_an_unknown_command_is_answered_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["trian", "x.toml"]) == 2
    assert capsys.readouterr().err == (
        "jaxpipe: no command `trian`; did you mean `train`? (`jaxpipe --help` lists them all)\n"
    )


def test_the_version_is_told_without_importing_jax() -> None:
    code = (
        "import sys; from jaxpipe.cli.main import main\n"
        "main(['--version']); sys.exit('jax' in sys.modules)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    jaxpipe, jax = metadata.version("jaxpipe"), metadata.version("jax")
    assert process.stdout.startswith(f"jaxpipe {jaxpipe}, jax {jax}, ")


def test_a_lack_of_memory_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise MemoryError("Unable to allocate 763. GiB")

    assert with_exit_code(work) == 1
    said = "jaxpipe: cannot have so much memory: Unable to allocate 763. GiB\n"
    assert capsys.readouterr().err == said
