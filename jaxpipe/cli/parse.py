"""Parse the options of a command; a mistake in them is one line, as any other mistake.

tyro prints a box of many lines and exits. The command itself runs after that, outside of what
catches the box::

    words ──► tyro ──┬─► options ──► command ──► exit code
                     └─► a box ──► `ConfigError` with its first part
"""

import io
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from functools import wraps
from itertools import groupby
from typing import get_type_hints

import tyro

from jaxpipe.cli.option_fields import named_by_option, options_by_field
from jaxpipe.cli.option_ranges import check_numbers
from jaxpipe.errors import ConfigError

_BORDER = "│╭╮╰╯ "
"""Of a terminal with Unicode; others get blanks, and dashes between the parts."""
_KINDS = {"INT": "a whole number", "FLOAT": "a number", "PATH": "a path"}
_NO_KIND = re.compile(
    r"no type matching (?:\{None\}\|)?(?P<kind>[A-Z]+) could be instantiated "
    r"from \['(?P<value>.*)'\]"
    r"|invalid literal for int\(\) with base 10: '(?P<text>.*)'"
)
_STYLE = re.compile("\x1b\\[[0-9;]*m")


def parse(command: Callable[..., int], words: Sequence[str], *, name: str) -> Callable[[], int]:
    """Return a command with the options in `words`, to be called; `name` is what the user typed.

    Raises:
        ConfigError: an option is unknown, missing, malformed or out of its range.
    """
    words, hidden = _without_hidden(command, words)

    @wraps(command)
    def later(*arguments: object, **options: object) -> Callable[[], int]:
        positional = dict(zip(get_type_hints(command), arguments, strict=False))
        given = {**positional, **options}
        check_numbers(given)

        def run() -> int:
            with named_by_option(options_by_field(command, given)):
                return command(*arguments, **{**options, **hidden})

        return run

    printed = io.StringIO()
    try:
        with redirect_stderr(printed):
            return tyro.cli(
                later,
                prog=name,
                args=words,
                # `--set` can be repeated, flags have no `--no-` twin, and enumerations read as in
                # TOML.
                config=(
                    tyro.conf.UseAppendAction,
                    tyro.conf.FlagCreatePairsOff,
                    tyro.conf.EnumChoicesFromValues,
                ),
            )
    except SystemExit as ended:
        if not ended.code:  # `--help`
            raise
        raise ConfigError(
            f"{in_words(printed.getvalue())} (`{name} --help` lists the options)"
        ) from None


def _without_hidden(
    command: Callable[..., int], words: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Return the words without options that `--help` does not show, and the values of these.

    They are the parameters that tyro suppresses: for fault injection, and for processes that a
    command starts.
    """
    hints = get_type_hints(command, include_extras=True)
    names = {
        f"--{name.replace('_', '-')}": name
        for name, hint in hints.items()
        if tyro.conf.Suppress in getattr(hint, "__metadata__", ())
    }
    left, hidden = list(words), dict[str, str]()
    for option, name in names.items():
        if option in left[:-1]:
            at = left.index(option)
            hidden[name] = left[at + 1]
            del left[at : at + 2]
    return left, hidden


def in_words(box: str) -> str:
    """Return the first part of a box as a sentence, and the option that may have been meant.

    >>> print(in_words('''
    ... ╭─ Unrecognized options ─────────╮
    ... │ Unrecognized options: --jsn    │
    ... │ ────────────────────────────── │
    ... │ Perhaps you meant:             │
    ... │     --json                     │
    ... ╰────────────────────────────────╯
    ... '''))
    unrecognized options: --jsn; did you mean `--json`?
    """
    lines = [line.strip(_BORDER) for line in _STYLE.sub("", box).strip().splitlines()]
    # The first line is the title; lines of dashes divide the rest.
    parts = [" ".join(part) for is_rule, part in groupby(lines[1:], key=_is_rule) if not is_rule]
    said = parts[0].replace(" (required)", "") if parts else "the options are wrong"
    said = _NO_KIND.sub(_wanted, said)
    meant = re.search(r"Perhaps you meant: +(--[a-z0-9-]+)", " ".join(parts))
    near = f"; did you mean `{meant[1]}`?" if meant else ""
    return f"{said[:1].lower()}{said[1:].rstrip('.')}{near}"


def _wanted(match: re.Match[str]) -> str:
    """Return what a value must be, of a conversion by tyro or Python that failed."""
    kind = _KINDS.get(match["kind"] or "INT", match["kind"])
    return f"it must be {kind}, not {match['value'] or match['text']!r}"


def _is_rule(line: str) -> bool:
    return not line.strip("─-")
