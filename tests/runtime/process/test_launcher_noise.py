"""The launcher's blocks about ranks that have ended are swallowed, and nothing else is."""

import pytest

from jaxpipe.runtime.process.launcher_noise import NoiseFilter

RULE = b"-" * 74 + b"\n"
ABORT = (
    RULE
    + b"MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\n  Proc: [[1,1],2]\n"
    + b"  Errorcode: 1\n\nNOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.\n"
    + RULE
)
KILLED = (
    RULE
    + b"prterun noticed that process rank 1 with PID 9016 on node a exited on\nsignal 9 (Killed).\n"
    + RULE
)
FOREIGN = RULE + b"There are not enough slots available in the system\n" + RULE


@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize(
    ("text", "passed"),
    [
        (b"rank 2: ValueError: x\n" + ABORT + b"\0", b"rank 2: ValueError: x\n"),
        (KILLED + b"after\n" + ABORT, b"after\n"),
        (FOREIGN + ABORT + FOREIGN, FOREIGN + FOREIGN),
        (b"- a list\nno newline", b"- a list\nno newline"),
        (RULE + b"a table of a program\n", RULE + b"a table of a program\n"),
        (RULE + b"x\n" * 50 + ABORT, RULE + b"x\n" * 50),
        (ABORT[:-20], b""),
        (b"", b""),
    ],
)
def test_only_noise_is_taken_out(text: bytes, passed: bytes, size: int) -> None:
    noise = NoiseFilter()
    pieces = (text[start : start + size] for start in range(0, len(text), size))
    assert b"".join([*map(noise.feed, pieces), noise.end()]) == passed


def test_what_is_no_block_is_passed_on_at_once() -> None:
    noise = NoiseFilter()
    assert noise.feed(b"50 %\r") == b"50 %\r"
    assert noise.feed(b"done\nand") == b"done\nand"
