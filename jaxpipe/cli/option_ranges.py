"""The range of each number on a command line; what is absurd is refused before any work.

::

    --tokens 1000000000000    ConfigError: `--tokens` must be from 0 to 1,000,000,000, not 10...
    --timeout nan             ConfigError: `--timeout` must be a number that is finite, not nan
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from math import isfinite

from jaxpipe.errors import ConfigError

MOST = 10**9
"""Of whatever is counted, measured or waited for: no command ends that does more of it."""
MOST_OF: Mapping[str, int] = {"seed": 2**32 - 1}
"""A key of JAX has 32 bits of the seed, as in `run.seed`."""
LEAST_OF: Mapping[str, int] = dict.fromkeys(
    (
        *("seed", "tokens", "temperature", "restarts", "shots", "notice", "step"),
        *("noise", "eval_fraction", "jitter_ms", "loss", "zero"),
    ),
    0,
)
"""Whole numbers are 1 at least, but for these; other numbers are above 0, but for these."""


def check_numbers(options: Mapping[str, object]) -> None:
    """Check the numbers among the options of a command, also those of its groups of options.

    >>> check_numbers({"tokens": 200, "top_p": 0.9, "top_k": None, "chat": True})

    Raises:
        ConfigError: one is out of its range; the message names the option.
    """
    for name, value in _numbers(options):
        option, least = f"`--{name.replace('_', '-')}`", LEAST_OF.get(name)
        most = MOST_OF.get(name, MOST)
        if isinstance(value, float) and not isfinite(value):
            raise ConfigError(f"{option} must be a number that is finite, not {value}")
        if isinstance(value, float) and least is None:
            if not 0 < value <= most:
                raise ConfigError(f"{option} must be above 0 and at most {most:,}, not {value:g}")
        elif not (least if least is not None else 1) <= value <= most:
            low = 1 if least is None else least
            raise ConfigError(f"{option} must be from {low} to {most:,}, not {value}")


def _numbers(options: Mapping[str, object]) -> Iterator[tuple[str, int | float]]:
    for name, value in options.items():
        if is_dataclass(value) and not isinstance(value, type):
            yield from _numbers({field.name: getattr(value, field.name) for field in fields(value)})
        elif isinstance(value, int | float) and not isinstance(value, bool | Enum):
            yield name, value
