"""Measured costs: what is counted is exact, what is timed is there, and the planner reads it."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from jaxpipe.errors import ConfigError
from jaxpipe.models import GptConfig, layer_residual_bytes, num_parameters
from jaxpipe.plan.cost import read_profile
from jaxpipe.profile.gpt_parts import (
    GptCosts,
    as_profile,
    blocks_in_a_row,
    measure_gpt,
    write_costs,
)
from jaxpipe.profile.measure_config import MeasureConfig
from jaxpipe.profile.part import TIMED
from jaxpipe.profile.timing import matrix_peak_flops_per_s, time_calls, time_in_turn
from jaxpipe.propose.gpt_profile import gpt_profile
from jaxpipe.schedule import Op, Remat

pytestmark = pytest.mark.slow

TINY = GptConfig(num_layers=2, dim=16, num_heads=2, sequence=8, vocabulary=32)
SETTINGS = MeasureConfig(microbatch=2, repeats=3, remat=Remat.FULL)


def ticking_clock() -> "itertools.count[float]":
    """Return a clock by which every call takes a second."""
    return itertools.count(0.0, 1.0)


@pytest.fixture(scope="module")
def measured() -> GptCosts:
    ticks = ticking_clock()
    return measure_gpt(
        TINY, cut=(1, 1), settings=SETTINGS, clock=lambda: next(ticks), observe=lambda _: None
    )


def test_every_part_is_timed_in_every_way(measured: GptCosts):
    assert [part.name for part in measured.kinds] == ["embedding", "block", "head and loss"]
    assert [part.name for part in measured.stages] == [
        "stage 0: 1 layers and embedding",
        "stage 1: 1 layers and head",
    ]
    for part in (*measured.kinds, *measured.stages):
        assert list(part.timings) == list(TIMED)
        # Two blocks are measured in a row, and the costs are those of one.
        expected_s = 1 / 2 if part.name == "block" else 1.0
        assert {timing.median_s for timing in part.timings.values()} == {expected_s}
        assert part.compiled_bytes >= 4 * part.parameters
        assert part.live_bytes >= 4 * 4 * part.parameters + part.kept_bytes


def test_parameters_of_16_bits_are_updated_again_and_again():
    config = replace(TINY, num_layers=1, param_dtype="bfloat16", compute_dtype="bfloat16")
    ticks = ticking_clock()
    measured = measure_gpt(
        config, settings=SETTINGS, clock=lambda: next(ticks), observe=lambda _: None
    )
    assert measured.kinds[1].timings[Op.UPDATE].repeats == 3


def test_what_is_counted_is_what_the_closed_forms_say(measured: GptCosts):
    embedding, block, head = measured.kinds
    assert embedding.parameters == num_parameters(TINY, layers=0, embed=True, head=False)
    assert block.parameters == num_parameters(TINY, layers=1, embed=False, head=False)
    assert head.parameters == num_parameters(TINY, layers=0, embed=False, head=True)
    assert block.kept_bytes == layer_residual_bytes(TINY, batch=2, sequence=8).full
    assert (embedding.forward_flops, embedding.backward_flops) == (0, 0)
    first, last = measured.stages
    assert first.forward_flops == block.forward_flops
    assert last.backward_flops == block.backward_flops + head.backward_flops


def test_the_profile_has_the_sizes_of_the_one_that_is_counted(measured: GptCosts):
    profile = as_profile(measured)
    counted = gpt_profile(TINY, remat=Remat.FULL, flops_per_s=1.0).scaled(microbatch=2)
    assert profile.activation_bytes == counted.activation_bytes
    assert len(profile.layers) == len(counted.layers)
    for cut in ((2,), (1, 1)):
        for stage in range(len(cut)):
            here, there = profile.stage(cut, stage), counted.stage(cut, stage)
            assert here.parameters == there.parameters
            assert min(here.forward_s, here.backward_s) > 0
            assert 0 < here.later_s < here.backward_s


def test_the_profile_has_the_seconds_of_the_optimizer(measured: GptCosts):
    profile = as_profile(measured)
    assert (profile.embed.update_s, profile.layers[0].update_s) == (1.0, 1 / 2)
    assert profile.head.update_s == pytest.approx(
        profile.head.parameters / measured.kinds[2].parameters
    )


def test_the_planner_reads_the_file(measured: GptCosts, tmp_path: Path):
    path = tmp_path / "profile.json"
    write_costs(measured, path)
    assert read_profile(path) == as_profile(measured)
    assert '"p90_s"' in path.read_text()


def test_a_shorter_sequence_makes_no_profile(measured: GptCosts):
    with pytest.raises(ConfigError, match="that of the model for a profile, 8, not 4"):
        as_profile(replace(measured, sequence=4))


@pytest.mark.parametrize(
    ("cut", "sequence"), [((2, 2), None), ((1, 0), None), ((), 9)], ids=["layers", "none", "long"]
)
def test_more_than_the_model_has_is_refused(cut: tuple[int, ...], sequence: int | None):
    with pytest.raises(ConfigError, match=r"`(sequence|layers)` must be at "):
        measure_gpt(
            TINY,
            cut=cut,
            settings=replace(SETTINGS, sequence=sequence),
            clock=float,
            observe=lambda _: None,
        )


@pytest.mark.parametrize("field", ["microbatch", "repeats", "sequence", "budget_s"])
def test_settings_without_work_are_refused(field: str):
    with pytest.raises(ConfigError, match=f"`{field}`"):
        replace(SETTINGS, **{field: 0})


@pytest.mark.parametrize(("budget_s", "expected"), [(0.5, 3), (4.5, 5), (100.0, 7)])
def test_a_call_is_repeated_as_long_as_there_is_time(budget_s: float, expected: int):
    calls: list[None] = []
    ticks = ticking_clock()
    timing = time_calls(
        lambda: calls.append(None),
        warmup=2,
        repeats=7,
        budget_s=budget_s,
        clock=lambda: next(ticks),
    )
    assert timing.repeats == expected
    assert len(calls) == 2 + expected
    assert timing.p10_s <= timing.median_s <= timing.p90_s


def test_calls_are_timed_in_turn():
    calls: list[str] = []
    # Each call takes as many seconds as its name has letters.
    seconds = itertools.accumulate(itertools.cycle([0.0, 2.0, 0.0, 3.0]))
    short, long = time_in_turn(
        (lambda: calls.append("ab"), lambda: calls.append("cde")),
        warmup=1,
        repeats=2,
        budget_s=100.0,
        clock=lambda: next(seconds),
    )
    assert calls == ["ab", "cde"] * 3
    assert (short.median_s, long.median_s) == (2.0, 3.0)
    assert (short.divided(2).p90_s, short.repeats) == (1.0, 2)


def test_on_an_accelerator_calls_count_as_those_of_a_step_that_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    # Two rounds with waits take 2 and 3 seconds for the calls, two without 4 for all.
    seconds = itertools.accumulate([0.0, 2.0, 0.0, 3.0, 0.0, 2.0, 0.0, 3.0, 0.0, 4.0])
    calls: list[str] = []
    short, long = time_in_turn(
        (lambda: calls.append("ab"), lambda: calls.append("cde")),
        warmup=0,
        repeats=2,
        budget_s=100.0,
        clock=lambda: next(seconds),
    )
    assert calls == ["ab", "cde"] * 4
    assert short.median_s == pytest.approx(2.0 * 4 / 10)
    assert long.median_s == pytest.approx(3.0 * 4 / 10)


@pytest.mark.parametrize(("dim", "layers", "expected"), [(16, 3, 3), (16, 24, 8), (2048, 24, 2)])
def test_blocks_in_a_row_do_not_stay_in_the_cache(dim: int, layers: int, expected: int):
    assert blocks_in_a_row(replace(TINY, dim=dim, num_layers=layers)) == expected


def test_the_peak_is_that_of_the_largest_product_by_a_clock_that_ticks():
    ticks = ticking_clock()
    assert matrix_peak_flops_per_s(dtype="float32", clock=lambda: next(ticks)) == 2 * 512.0**3


def test_the_optimizer_is_measured_last():
    assert TIMED[-1] is Op.UPDATE
