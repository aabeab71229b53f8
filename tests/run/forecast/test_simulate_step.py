"""The simulated step of a configuration: counted FLOPs or measured computes, over any links."""

from dataclasses import replace
from typing import Any

import pytest

from jaxpipe.config import Config, cluster_from, config_from
from jaxpipe.errors import ConfigError
from jaxpipe.outer import OuterConfig
from jaxpipe.propose.conditions import conditions_of
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.forecast.simulate_step import simulate_step
from jaxpipe.simulate.outer_step import outer_times
from jaxpipe.topo import with_slower_links, without_network
from jaxpipe.trace import Lane, Trace, Truth, messages


def config_of(**sections: dict[str, Any]) -> Config:
    tree: dict[str, dict[str, Any]] = {
        "run": {"folder": "run"},
        "data": {"folder": "data"},
        "model": {"preset": "gpt2", "compute_dtype": "float16"},
        "plan": {
            "cluster": "case3-universities",
            "stages": 4,
            "replicas": 2,
            "microbatch": 1,
            "schedule": "1f1b",
        },
        "train": {"batch": 16},
    }
    return config_from(
        {name: {**tree.get(name, {}), **sections.get(name, {})} for name in {**tree, **sections}}
    )


def end_s(trace: Trace) -> float:
    return max(span.end_s for span in trace.spans)


def compute_s(trace: Trace) -> float:
    return sum(span.end_s - span.start_s for span in trace.spans if span.lane is Lane.COMPUTE)


def test_it_names_every_rank_and_says_that_it_is_simulated() -> None:
    simulated = simulate_step(config_of())
    assert simulated.truth is Truth.SIMULATED
    assert len(simulated.rank_names) == 8
    assert {span.rank for span in simulated.spans} == set(range(8))


def test_slower_links_take_longer_and_free_ones_least() -> None:
    config = config_of()
    cluster = cluster_from(config)
    ends_s = [
        end_s(simulate_step(config, cluster=each))
        for each in (without_network(cluster), cluster, with_slower_links(cluster, scale=10.0))
    ]
    assert ends_s == sorted(ends_s)
    assert ends_s[0] < ends_s[1] < ends_s[2]


def test_a_measured_trace_brings_its_own_computes() -> None:
    config = config_of()
    simulated = simulate_step(config)
    twice = replace(
        simulated,
        truth=Truth.MEASURED,
        spans=tuple(
            replace(span, start_s=2 * span.start_s, end_s=2 * span.end_s)
            for span in simulated.spans
        ),
    )
    replayed = simulate_step(config, measured=twice)
    assert compute_s(replayed) == pytest.approx(2 * compute_s(simulated))


def test_an_unknown_speed_is_named_with_its_field() -> None:
    unknown = {"cluster": "two-region", "stages": 2}
    with pytest.raises(
        ConfigError, match=r"^`paced.tflops` must be set: .* neither `gpu`, `tflops` nor `effec"
    ):
        simulate_step(config_of(plan=unknown))
    known = config_of(plan=unknown, paced={"tflops": 10.0})
    assert end_s(simulate_step(known)) > 0


def test_islands_step_side_by_side() -> None:
    """Each as long as its own plan alone, without sums between them; also with measured seconds."""
    outer = {"islands": 2, "every": 2}
    whole, apart = simulate_step(config_of()), simulate_step(config_of(outer=outer))
    assert apart.rank_names == whole.rank_names
    found = {(sent.rank, received.rank) for sent, received in messages(apart)}
    assert found == {(sent.rank, received.rank) for sent, received in messages(whole)}
    times = outer_times(
        plan_from(config_of()), conditions_of(config_of()), OuterConfig(islands=2, every=2)
    )
    assert end_s(apart) == pytest.approx(times.inner_s)
    assert end_s(apart) < end_s(whole)
    measured = replace(apart, truth=Truth.MEASURED)
    again = simulate_step(config_of(outer=outer), measured=measured)
    assert compute_s(again) == pytest.approx(compute_s(apart))
