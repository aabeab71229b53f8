"""Checks before a run: all ranks have the same versions and configuration.

An error that every rank detects is raised on all of them, and reported once, by rank 0.
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


def check_same_everywhere(
    transport: Transport, description: Mapping[str, Any], *, timeout_s: float
) -> None:
    """Check that all ranks have the same description; all ranks call this before they compile.

    `description` consists of nested dictionaries. `timeout_s` is for each message.

    Raises:
        ConfigError: a rank differs from rank 0; names the rank, the field and both values.
        DeadlineError: a rank did not call this in time.
    """
    facts = dict(flat(description))  # as text: values of any type compare, and show in the message
    gathered = gather_bytes(
        transport, msgspec.json.encode(facts), root=0, tag=GATHER_TAG, timeout_s=timeout_s
    )
    verdict = None
    if gathered is not None:
        everything = [msgspec.json.decode(text, type=dict[str, str]) for text in gathered]
        verdict = (difference(everything) or "").encode()
    message = broadcast_bytes(transport, verdict, root=0, tag=BROADCAST_TAG, timeout_s=timeout_s)
    if message:
        raise_on_all_ranks(transport, ConfigError(message.decode()))


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
    """Return the error message for the first difference from rank 0, None if there is none.

    >>> difference([{"versions.jax": "'0.9'"}, {"versions.jax": "'0.10'"}])
    "all ranks must run alike: `versions.jax` is '0.10' on rank 1, but '0.9' on rank 0; start all \
ranks with the same configuration, in the same environment"
    """
    first = facts[0]
    for rank, other in enumerate(facts):
        for name in [*first, *(name for name in other if name not in first)]:
            here, there = first.get(name, "missing"), other.get(name, "missing")
            if here != there:
                return (
                    f"all ranks must run alike: `{name}` is {there} on rank {rank}, but {here} on "
                    "rank 0; start all ranks with the same configuration, in the same environment"
                )
    return None


_NOTHING = jax.ShapeDtypeStruct((0,), np.dtype(np.uint8))
_WAIT_FOR_RANK_0_S = 10.0


def raise_on_all_ranks(transport: Transport, error: JaxpipeError) -> NoReturn:
    """Raise the error at once on rank 0; on the others after a pause, so that rank 0 reports it.

    Raises:
        JaxpipeError: the `error`.
    """
    if transport.rank != 0:
        with suppress(RunError):
            # Rank 0 never sends it: its error aborts the job, and this rank with it, meanwhile.
            never = transport.receive(_NOTHING, source=0, tag=BARRIER_TAG)
            never.wait(timeout_s=_WAIT_FOR_RANK_0_S)
    raise error
