"""The reference of commands, from the functions behind the command line."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import docstring_parser
from tyro.conf import Positional, Suppress

from docs.tools.fields import definitions, facts, fields_of, literal, type_name
from docs.tools.source import DocumentationError, summary
from jaxpipe.cli.command_table import single_commands

_POSITIONAL, _SUPPRESSED = get_args(Positional[int])[1], get_args(Suppress[int])[1]


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """An argument of a command, as it is typed."""

    typed: str
    type: str
    default: str
    meaning: str


def commands() -> dict[str, Callable[..., int]]:
    """Return all commands by the words that call them, such as `topo show`."""
    return {name: command.load() for name, command in single_commands().items()}


def command_reference() -> str:
    """Return the page: each command with its arguments."""
    return "\n\n".join(_section(name, command) for name, command in commands().items())


def options(command: Callable[..., int]) -> Iterator[Option]:
    """Yield the arguments of a command; those of a dataclass are spread, as tyro spreads them.

    Raises:
        DocumentationError: an argument is not documented.
    """
    hints = get_type_hints(command, include_extras=True)
    docs = {
        argument.arg_name: argument.description
        for argument in docstring_parser.parse(_doc(command)).params
    }
    for name, parameter in inspect.signature(command).parameters.items():
        hint, marks = _unwrap(hints[name])
        if _SUPPRESSED in marks:
            continue
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from _spread(hint)
            continue
        if not (meaning := docs.get(name)):
            raise DocumentationError(f"argument {name} of {command.__name__} is not documented")
        yield _option(name, hint, marks, parameter.default, " ".join(meaning.split()))


def _section(name: str, command: Callable[..., int]) -> str:
    entries = [(o.typed, facts(o.type, default=o.default), o.meaning) for o in options(command)]
    listed = definitions(entries) if entries else "No arguments."
    return f"## jaxpipe {name}\n\n{summary(command)}\n\n{listed}"


def _option(name: str, hint: Any, marks: tuple[Any, ...], default: Any, meaning: str) -> Option:
    typed, is_flag = name.replace("_", "-"), hint is bool
    metavar, aliases = None, ()
    for mark in marks:
        typed = getattr(mark, "name", None) or typed
        metavar = getattr(mark, "metavar", None) or metavar
        aliases = getattr(mark, "aliases", None) or aliases
    if _POSITIONAL in marks:
        shown = f"`{metavar or name.upper()}`"
    else:
        shown = ", ".join(f"`{alias}`" for alias in (*aliases, f"--{typed}"))
    required = default is inspect.Parameter.empty
    shown_default = "required" if required else _shown_default(default)
    kind = "flag" if is_flag else type_name(hint)
    return Option(shown, kind, "" if is_flag else shown_default, meaning[:1].upper() + meaning[1:])


def _spread(section: type) -> Iterator[Option]:
    for field in fields_of(section):
        is_flag = field.type == "boolean"
        meaning = field.meaning + (f" [{field.unit}]" if field.unit else "")
        yield Option(
            f"`--{field.name.replace('_', '-')}`",
            "flag" if is_flag else field.type,
            "" if is_flag else field.default,
            meaning,
        )


def _shown_default(default: Any) -> str:
    return "" if default in (None, (), "") else f"`{literal(default)}`".replace('"', "")


def _unwrap(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    if get_origin(hint) is not Annotated:
        return hint, ()
    inner, *marks = get_args(hint)
    return inner, tuple(marks)


def _doc(command: Callable[..., int]) -> str:
    return inspect.getdoc(command) or ""
