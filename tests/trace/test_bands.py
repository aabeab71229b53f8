"""The rows of a timeline: grouped by stage, and chosen by rank and stage."""

from dataclasses import replace
from itertools import pairwise

import pytest

from jaxpipe.errors import ConfigError
from jaxpipe.trace import Lane, Trace, Truth, chosen_ranks
from jaxpipe.trace.bands import bands_of, device_label, parse_numbers
from tests.trace.strategies import span


def traced(*stages: tuple[int, ...]) -> Trace:
    """Return a trace of ranks with these stages."""
    spans = tuple(
        replace(span(Lane.UPDATE, 0.0, 1.0, rank=rank), stage=stage)
        for rank, held in enumerate(stages)
        for stage in held
    )
    names = tuple(f"stage 0 on host-{rank}:0" for rank in range(len(stages)))
    return Trace(truth=Truth.MEASURED, rank_names=names, spans=spans)


PIPELINES = traced((0,), (1,), (2,), (0,), (1,), (2,))


def test_ranks_of_a_stage_are_neighbours_and_groups_have_gaps() -> None:
    bands = bands_of(PIPELINES)
    assert list(bands.tops) == [0, 3, 1, 4, 2, 5]
    tops = list(bands.tops.values())
    assert [after - before for before, after in pairwise(tops)] == pytest.approx(
        [1.0, 1.4, 1.0, 1.4, 1.0]
    )
    assert [group.label for group in bands.groups] == ["stage 0", "stage 1", "stage 2"]
    assert bands.labels[3] == "rank 3"


def test_a_single_pipeline_has_no_groups_and_names_its_stages() -> None:
    bands = bands_of(traced((0, 2), (1, 3), ()))
    assert bands.groups == ()
    assert bands.labels == {
        0: "rank 0 · stages 0, 2",
        1: "rank 1 · stages 1, 3",
        2: "rank 2 · no stage",
    }
    assert bands.height == 3


def test_a_row_names_the_device() -> None:
    assert device_label(PIPELINES, 4) == "host-4:0"
    long = replace(PIPELINES, rank_names=("\x1b[2J" + "x" * 60,) * 6)
    assert device_label(long, 0).startswith("\\x1b[2Jx")
    assert len(device_label(long, 0)) == 28


@pytest.mark.parametrize(
    ("ranks", "stages", "chosen"),
    [
        (None, None, (0, 1, 2, 3, 4, 5)),
        ("0-2,5", None, (0, 1, 2, 5)),
        (None, "0,2", (0, 2, 3, 5)),
        ("3-5", "1-2", (4, 5)),
    ],
)
def test_ranks_are_chosen(ranks: str | None, stages: str | None, chosen: tuple[int, ...]) -> None:
    assert chosen_ranks(PIPELINES, ranks=ranks, stages=stages) == chosen
    assert sorted(bands_of(PIPELINES, ranks=chosen).tops) == list(chosen)


@pytest.mark.parametrize(
    ("ranks", "stages", "words"),
    [
        ("4-9", None, r"`--ranks` must be of the trace, not 6, 7, 8, 9; choose from 0 to 5"),
        ("0-999999", None, r"not 6, 7, 8, 9, 10, 11, 12, 13 \.\.\.; choose"),
        (None, "3", r"`--stages` must be of the trace, not 3; choose from 0 to 2"),
        ("0", "1", r"`--ranks` \('0'\) and `--stages` \('1'\) have no rank in common"),
    ],
)
def test_what_the_trace_lacks_is_refused(ranks: str | None, stages: str | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        chosen_ranks(PIPELINES, ranks=ranks, stages=stages)


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-1", "1-", "0-9999999", "²"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"`--ranks` must be numbers and ascending ranges"):
        parse_numbers(text, name="--ranks")
