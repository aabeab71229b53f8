"""Ranks that differ are refused, and all of them hear why."""

from typing import Any

import pytest

from jaxpipe.comm import Transport, run_ranks
from jaxpipe.errors import ConfigError
from jaxpipe.runtime.process.preflight import check_same_everywhere

DESCRIPTION: dict[str, Any] = {"config": {"run": {"seed": 1}}, "versions": {"jax": "0.10.2"}}


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_ranks_that_agree(num_ranks: int) -> None:
    def work(transport: Transport) -> None:
        check_same_everywhere(transport, DESCRIPTION, timeout_s=20.0)

    run_ranks(num_ranks, work)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"versions": {"jax": "0.9"}}, r"`versions\.jax` is '0\.9' on rank 2, but '0\.10\.2' on"),
        ({"config": {"run": {"seed": 3}}}, r"`config\.run\.seed` is 3 on rank 2, but 1 on rank 0"),
        ({"resume": True}, r"`resume` is True on rank 2, but missing on rank 0"),
    ],
)
def test_a_rank_that_differs(changed: dict[str, Any], words: str) -> None:
    heard: list[str] = []

    def work(transport: Transport) -> None:
        mine = {**DESCRIPTION, **changed} if transport.rank == 2 else DESCRIPTION
        try:
            check_same_everywhere(transport, mine, timeout_s=20.0)
        except ConfigError as error:
            heard.append(str(error))
            raise

    with pytest.raises(ConfigError, match=words):
        run_ranks(4, work)
    assert len(heard) >= 1
    assert len(set(heard)) == 1
