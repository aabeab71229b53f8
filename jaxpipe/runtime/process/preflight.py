"""Ranks that were started with different versions or configurations are refused at once.

Errors that all ranks find at the same time: one of them says so for all.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NoReturn

import jax
import msgspec
import numpy as np

from jaxpipe.comm import (
    BARRIER_TAG,
    BROADCAST_TAG,
    GATHER_TAG,
    Transport,
    broadcast_bytes,
    gather_bytes,
)
from jaxpipe.errors import ConfigError, JaxpipeError, RunError

Facts = Mapping[str, str]


def check_same_everywhere(
    transport: Transport, description: Mapping[str, Any], *, timeout_s: float
) -> None:
    """Check that all ranks are of the same description; all ranks call this before they compile.

    `description` is of nested dictionaries. Each message may take `timeout_s`.

    Raises:
        ConfigError: a rank differs from rank 0; names the rank, the field and both values.
        DeadlineError: a rank did not come in time.
    """
    facts = dict(flat(description))
    gathered = gather_bytes(
        transport, msgspec.json.encode(facts), root=0, tag=GATHER_TAG, timeout_s=timeout_s
    )
    verdict = None
    if gathered is not None:
        everything = [msgspec.json.decode(each, type=dict[str, str]) for each in gathered]
        verdict = (difference(everything) or "").encode()
    told = broadcast_bytes(transport, verdict, root=0, tag=BROADCAST_TAG, timeout_s=timeout_s)
    if told:
        raise_on_all_ranks(transport, ConfigError(told.decode()))


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of nested dictionaries, with dotted names.

    >>> dict(flat({"config": {"run": {"seed": 1}}, "versions": {"jax": "0.10"}}))
    {'config.run.seed': '1', 'versions.jax': "'0.10'"}
    """
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", repr(value)


def difference(facts: list[dict[str, str]]) -> str | None:
    """Say in what the first rank that differs from rank 0 does so; None if none does.

    >>> difference([{"versions.jax": "'0.9'"}, {"versions.jax": "'0.10'"}])
    "all ranks run alike: `versions.jax` is '0.10' on rank 1, but '0.9' on rank 0; start all ranks \
with the same configuration, in the same environment"
    """
    first = facts[0]
    for rank, other in enumerate(facts):
        for name in [*first, *(name for name in other if name not in first)]:
            here, there = first.get(name, "missing"), other.get(name, "missing")
            if here != there:
                return (
                    f"all ranks run alike: `{name}` is {there} on rank {rank}, but {here} on rank "
                    "0; start all ranks with the same configuration, in the same environment"
                )
    return None


_NOTHING = jax.ShapeDtypeStruct((0,), np.dtype(np.uint8))
_SECONDS_TO_BE_ENDED = 10.0


def raise_on_all_ranks(transport: Transport, error: JaxpipeError) -> NoReturn:
    """Raise the error at once on rank 0; the others first wait until that has ended them.

    Raises:
        JaxpipeError: the `error`.
    """
    if transport.rank != 0:
        with suppress(RunError):
            last_word = transport.receive(_NOTHING, source=0, tag=BARRIER_TAG)
            last_word.wait(timeout_s=_SECONDS_TO_BE_ENDED)
    raise error
