"""The refusals of a model in the names of the file that it was read from.

::

    `num_layers` must be from 1 to 65,536, not 1000000000000                            models
    `num_hidden_layers` in `config.json` must be from 1 to 65,536, not 1000000000000    the user's
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jaxpipe.errors import ConfigError

_NAME = re.compile(r"`(\w+)`")


@contextmanager
def refused_by_name(
    fields: Mapping[str, str], *, derived: Mapping[str, str], stated: Mapping[str, Any]
) -> Iterator[None]:
    """Turn the refusal of a model into one that names the field of its `config.json`.

    Args:
        fields: the names in the file, by the model's, where both have the same value.
        derived: those of which the model's value is computed, such as a root.
        stated: the fields of the file.

    >>> with refused_by_name({"dim": "n_embd"}, derived={}, stated={}):
    ...     raise ValueError("`dim` must be at least 1, not 0")
    Traceback (most recent call last):
    jaxpipe.errors.ConfigError: `n_embd` in `config.json` must be at least 1, not 0

    Raises:
        ConfigError: the model raises a `ValueError`.
    """
    try:
        yield
    except ValueError as error:
        words = str(error)
        lead = _NAME.match(words)
        source = None if lead is None else derived.get(lead[1])
        if source is not None:
            value = stated.get(source)
            raise ConfigError(f"`{source}` in `config.json` is {value!r:.80}: {words}") from error
        known = {**fields, **derived}
        renamed = _NAME.sub(lambda name: f"`{known.get(name[1], name[1])}`", words)
        if lead is None or lead[1] not in fields:
            raise ConfigError(f"`config.json`: {renamed}") from error
        raise ConfigError(_NAME.sub(r"\g<0> in `config.json`", renamed, count=1)) from error
