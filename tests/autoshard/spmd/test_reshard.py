"""Any sharding is reached from any other, by cuts and collectives that are legal."""

from itertools import permutations

import pytest

from jaxpipe.autoshard.spmd.reshard import cuts, next_move
from jaxpipe.autoshard.strategy import Sharding, parse_sharding

_TEXTS = ["RR", "S0R", "S1R", "RS0", "RS1", "S0S1", "S1S0", "S01R", "RS01", "S10R", "RS10"]


@pytest.mark.parametrize(("stored", "needed"), [*permutations(_TEXTS, 2)])
def test_every_way_ends(stored: str, needed: str) -> None:
    here, there = parse_sharding(stored), parse_sharding(needed)
    moves = 0
    while cuts(here, there) is None:
        here, moves = next_move(here, there).after, moves + 1
        assert moves <= 3
    found = list(here.dims)
    for dim, axes in cuts(here, there) or ():
        found[dim] = (*found[dim], *axes)
    assert Sharding(tuple(found)) == there


def test_a_cut_is_free_and_a_move_is_one_collective() -> None:
    assert cuts(parse_sharding("RR"), parse_sharding("S0S1")) is not None
    move = next_move(parse_sharding("S0R"), parse_sharding("RS0"))
    assert (move.dim, move.to_dim, str(move.after)) == (0, 1, "RS0")
