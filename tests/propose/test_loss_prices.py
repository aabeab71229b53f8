"""Prices in loss are those of the experiments, to the digits that are stated."""

from pathlib import Path
from statistics import mean

import numpy as np
import pytest

from experiments.table import read_csv
from jaxpipe.collective import CodecKind, Codecs
from jaxpipe.models import GptConfig
from jaxpipe.propose.loss_prices import (
    BOUNDARY_GAPS,
    GRADIENT_GAPS,
    NO_GAP,
    RANK_GAPS,
    codec_gap,
    outer_gap,
    rank_gap,
)

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.mark.parametrize(("parameters", "boundary"), [(0.84e6, "1+2+3"), (14.4e6, "2+4+6")])
def test_ranks_cost_what_was_measured(parameters: float, boundary: str) -> None:
    rows = read_csv(EXPERIMENTS / "low_rank/results/loss.csv")
    alike = [row for row in rows if row["boundary"] == boundary]
    for row in alike:
        assert float(row["parameters"]) == pytest.approx(parameters, rel=1e-2)
    gaps = RANK_GAPS[parameters]
    losses = [
        mean(float(row["loss"]) for row in alike if float(row["bytes_ratio"]) == ratio)
        for ratio in gaps
    ]
    if len({row["seed"] for row in alike}) == 1:  # it does not tell ranks apart
        losses[1:] = [max(losses)] * len(losses[1:])
    np.testing.assert_allclose(np.divide(losses, losses[0]) - 1, list(gaps.values()), atol=5e-4)


def test_codecs_cost_what_was_measured() -> None:
    rows = read_csv(EXPERIMENTS / "codecs/results/summary.csv")
    losses = {str(row["run"]): float(row["held-out loss"]) for row in rows}
    for place, gaps in (("boundary", BOUNDARY_GAPS), ("gradients", GRADIENT_GAPS)):
        for kind, gap in gaps.items():
            name = f"{place} {kind}" + (" 10 %" if kind is CodecKind.TOP_K else "")
            assert losses[name] / losses["none"] - 1 == pytest.approx(gap, abs=4e-3), name


def test_gentle_codecs_cost_nothing_and_others_add_up() -> None:
    assert codec_gap(Codecs(boundary=CodecKind.INT8, gradients=CodecKind.BF16)) == NO_GAP
    both = codec_gap(Codecs(boundary=CodecKind.INT4, gradients=CodecKind.INT4))
    assert both.fraction == pytest.approx(0.009)


def test_a_rank_between_those_measured_costs_as_the_next_narrower_one() -> None:
    def gap_of(rank: int) -> float:
        config = GptConfig(
            num_layers=2,
            dim=128,
            num_heads=2,
            sequence=16,
            vocabulary=32,
            bottlenecks=((1, rank),),
        )
        gap = rank_gap(config)
        assert gap is not None
        assert ("beyond" in gap.basis) == (rank < 2)
        return gap.fraction

    assert [gap_of(rank) for rank in (128, 20, 16, 9, 2, 1)] == [
        RANK_GAPS[0.84e6][ratio] for ratio in (1, 8, 8, 16, 64, 64)
    ]


def test_more_islands_than_published_have_no_price() -> None:
    assert outer_gap(9, num_parameters=1e9) is None
