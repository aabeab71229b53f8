"""Every number of every command line has a range, and what is outside is refused by its option."""

import dataclasses
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from jaxpipe.cli.command_table import TOPICS, Command
from jaxpipe.cli.main import main
from jaxpipe.cli.option_ranges import LEAST_OF, MOST_OF
from jaxpipe.cli.parse import parse
from jaxpipe.errors import ConfigError

Numeric = type[int] | type[float]
ABSURD = ("-1", "9223372036854775808", "1e18", "nan", "inf", "-inf", "")


def commands() -> Iterator[tuple[tuple[str, ...], Callable[..., int]]]:
    for topic in TOPICS.values():
        for name, entry in topic.items():
            if isinstance(entry, Command):
                yield (name,), entry.load()
            else:
                for second, command in entry.commands.items():
                    yield (name, second), command.load()


def numbers_of(hints: Mapping[str, Any]) -> Iterator[tuple[str, Numeric]]:
    """Yield the numeric options of a command, and of its groups of options."""
    for name, hint in hints.items():
        base = typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
        if dataclasses.is_dataclass(base):
            yield from numbers_of(typing.get_type_hints(base, include_extras=True))
        for kind in (int, float):
            if name != "return" and kind in (base, *typing.get_args(base)):
                yield name, kind


def required_of(command: Callable[..., int]) -> list[str]:
    """Return words for what a command requires, as its own errors ask for them."""
    words: list[str] = []
    for _ in range(5):
        try:
            parse(command, words, name="jaxpipe")
        except ConfigError as error:
            said = str(error)
            if (
                missing := re.search(r": (?:-\w PATH, )?(--\w+) (?:PATH|STR|\{(\w+))", said)
            ) is not None:
                words += [missing[1], missing[2] or "x"]
            else:
                words.append("x")
        else:
            return words
    raise AssertionError(words)


OPTIONS = [
    (words, command, name, kind)
    for words, command in commands()
    for name, kind in numbers_of(typing.get_type_hints(command, include_extras=True))
]


@pytest.mark.parametrize(
    ("words", "command", "name", "kind"),
    OPTIONS,
    ids=[f"{' '.join(words)} {name}" for words, _, name, _ in OPTIONS],
)
def test_absurd_numbers_are_refused_by_option(
    words: tuple[str, ...],
    command: Callable[..., int],
    name: str,
    kind: Numeric,
    capsys: pytest.CaptureFixture[str],
) -> None:
    option, required = f"--{name.replace('_', '-')}", required_of(command)
    absurd = ABSURD if LEAST_OF.get(name) == 0 else (*ABSURD, "0")
    if name in MOST_OF:
        absurd = (*absurd, str(MOST_OF[name] + 1))
    for value in absurd:
        assert main([*words, *required, f"{option}={value}"]) == 2, value
        said = capsys.readouterr()
        assert option in said.err, (value, said.err)
        assert said.out == "", (value, said.out)
        assert said.err.count("\n") == 1, (value, said.err)


def test_there_are_many_and_each_row_is_of_one() -> None:
    names = {name for _, _, name, _ in OPTIONS}
    assert len(OPTIONS) > 50
    assert names | {"zero"} >= LEAST_OF.keys() | MOST_OF.keys()  # of `--zero`, the choices are few
