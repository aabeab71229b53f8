"""The fields of a configuration that options fill: a refusal names what the user has given.

::

    evaluate RUN --data nosuch             `--data` must hold a prepared dataset; ...
    train c.toml --set data.folder=nosuch  `data.folder` must hold a prepared dataset; ...
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, get_type_hints

from jaxpipe.errors import UserError

_SETTINGS = "settings"


@dataclass(frozen=True, slots=True)
class Fills:
    """Marks an option: its value becomes that of a field of the configuration."""

    field: str


def options_by_field(command: Callable[..., object], given: Mapping[str, object]) -> dict[str, str]:
    """Return the options that were given, by the fields that they fill and by their own names.

    A field that `--set` changes as well is left out.

    >>> from typing import Annotated
    >>> def plan(*, batch: Annotated[int | None, Fills("train.batch")] = None, seed: int = 0): ...
    >>> options_by_field(plan, {"batch": 0, "seed": 0})
    {'train.batch': '--batch', 'batch': '--batch'}
    """
    hints, parameters = get_type_hints(command, include_extras=True), signature(command).parameters
    settings: Any = given.get(_SETTINGS, ())
    keys = {setting.partition("=")[0].strip() for setting in settings}
    names: dict[str, str] = {}
    for name, value in given.items():
        parameter = parameters[name]
        if parameter.kind is not Parameter.KEYWORD_ONLY or value == parameter.default:
            continue
        marks = getattr(hints[name], "__metadata__", ())
        spelt = next(filter(None, (getattr(mark, "name", None) for mark in marks)), name)
        fields = [mark.field for mark in marks if isinstance(mark, Fills)]
        names |= dict.fromkeys({*fields} - keys, f"--{spelt.replace('_', '-')}")
        names[name] = f"--{spelt.replace('_', '-')}"
    return names


@contextmanager
def named_by_option(options: Mapping[str, str]) -> Iterator[None]:
    """Name options in a refusal, in place of the fields that they fill.

    A name without a section may have another sense in the middle of a sentence: it counts where the
    message leads with it.

    >>> with named_by_option({"train.batch": "--batch", "batch": "--batch"}):
    ...     raise UserError("`train.batch` must be a multiple of 2")
    Traceback (most recent call last):
    jaxpipe.errors.UserError: `--batch` must be a multiple of 2
    """
    try:
        yield
    except UserError as error:
        words = str(error)
        for field, option in options.items():
            if "." in field or words.startswith(f"`{field}`"):
                words = words.replace(f"`{field}`", f"`{option}`")
        if words == str(error):
            raise
        raise type(error)(words) from error
