"""Samples that are lost, doubled or others are found, whatever attempts fed them."""

import numpy as np
import pytest

from jaxpipe.chaos.harness.sample_log import FedSamples, wanted_rows, wrongly_fed

TOKENS = np.arange(200, dtype=np.uint8)
WANTED = wanted_rows(TOKENS, seed=1, batch=4, sequence=8, steps=3)


def fed(attempt: int, step: int, rows: range, *, ends: str = "first last") -> FedSamples:
    return FedSamples(
        attempt=attempt,
        step=step,
        is_first_stage="first" in ends,
        is_last_stage="last" in ends,
        rows={row: WANTED[step][row] for row in rows},
    )


ALL = [fed(1, step, range(4)) for step in range(3)]


@pytest.mark.parametrize(
    "right",
    [
        ALL,
        [fed(1, step, range(2)) for step in range(3)]
        + [fed(1, step, range(2, 4)) for step in range(3)],
        [fed(1, s, range(4), ends=end) for s in range(3) for end in ("first", "last", "middle")],
        [*ALL, fed(2, 2, range(4))],  # done again by the second attempt
        [*ALL, fed(0, 1, range(3))],  # cut off in the attempt before
    ],
)
def test_right(right: list[FedSamples]) -> None:
    assert wrongly_fed(right, WANTED) == ""


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ([], "step 1: the first stage was fed rows [] of 4"),
        (ALL[:2], "step 3: the first stage was fed rows [] of 4"),
        ([*ALL, fed(1, 1, range(1))], "step 2: the first stage was fed rows [0, 0, 1, 2, 3] of 4"),
        ([*ALL, fed(2, 1, range(3))], "step 2: the first stage was fed rows [0, 1, 2] of 4"),
        ([*ALL, fed(2, 0, range(4), ends="first")], "step 1: the last stage was fed rows []"),
        (
            [*ALL, FedSamples(attempt=2, step=0, is_first_stage=True, is_last_stage=True,
                       rows=dict.fromkeys(range(4), 0))],
            "step 1: the first stage was fed other samples",
        ),
    ],
)  # fmt: skip
def test_wrong(wrong: list[FedSamples], words: str) -> None:
    assert words in wrongly_fed(wrong, WANTED)
