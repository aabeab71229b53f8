"""Each layout is made once, by the steps that are priced."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.baselines.autoshard.graph import ArrayType
from jaxpipe.baselines.autoshard.resharding import LayoutBook, steps_to
from jaxpipe.baselines.autoshard.strategy import AxisLink, MeshShape, Sharding, parse_sharding

LINK = AxisLink(latency_s=1e-6, bandwidth_bytes_per_s=1e9)
ARRAY = ArrayType(shape=(8, 8), dtype="float32", itemsize=4)
LAYOUTS = LayoutBook(mesh=MeshShape(dp=2, op=2, dp_link=LINK, op_link=LINK)).of(ARRAY)
SHARDINGS = st.sampled_from(LAYOUTS.shardings)


@given(stored=SHARDINGS, needed=st.lists(SHARDINGS, max_size=4))
def test_steps_lead_to_all_layouts_each_once(stored: Sharding, needed: list[Sharding]) -> None:
    there = [stored]
    for step in steps_to(LAYOUTS, stored, needed):
        assert step.before in there
        assert step.after not in there
        there.append(step.after)
    assert set(needed) <= set(there)


@given(stored=SHARDINGS, needed=st.lists(SHARDINGS, min_size=1, max_size=4))
def test_together_they_take_no_more_than_one_by_one(
    stored: Sharding, needed: list[Sharding]
) -> None:
    alone = [steps_to(LAYOUTS, stored, [each]) for each in set(needed)]
    together = steps_to(LAYOUTS, stored, needed)
    counts = [sum(step.collective is not None for step in steps) for steps in (*alone, together)]
    assert counts[-1] <= sum(counts[:-1])


@pytest.mark.parametrize(
    ("stored", "needed", "steps"),
    [
        ("S0R", ["RS0", "RS0"], ["S0R RS0 all-to-all"]),
        ("S0R", ["RR", "RS0"], ["S0R RR all-gather", "RR RS0 slice"]),
        ("S0R", ["RS1"], ["S0R S0S1 slice", "S0S1 RS1 all-gather"]),
        ("RR", ["S01R"], ["RR S0R slice", "S0R S01R slice"]),
    ],
)
def test_known_ways(stored: str, needed: list[str], steps: list[str]) -> None:
    found = steps_to(LAYOUTS, parse_sharding(stored), map(parse_sharding, needed))
    words = [
        f"{each.before} {each.after} {each.collective.kind if each.collective else 'slice'}"
        for each in found
    ]
    assert words == steps
