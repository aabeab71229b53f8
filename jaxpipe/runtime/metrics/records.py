"""The metrics of a step, and what is read of the file of JSON lines that has them.

::

    {"run": {...}, "truth": ..., "checksum": "9f.."}     an attempt
    {"step": 1, "loss": 5.2, ..., "checksum": "1c.."}    a step of it: some 500 bytes

Files are read line by line, and never as a whole: those of long runs have a million lines.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from jaxpipe.errors import DataError
from jaxpipe.foreign_file import (
    check_depth,
    parse_json,
    parse_number_json,
    read_lines,
    reason_of,
)
from jaxpipe.runtime.storage.checksum import check_line
from jaxpipe.trace import LinkReport

logger = logging.getLogger(__name__)

METRICS_FILE, TRACE_FILE, PICTURE_FILE = "metrics.jsonl", "trace.json", "timeline.png"
"""The files of rank 0 in the folder of a run: metrics, trace of the last steps, its picture."""

_MOST_BYTES = 2**33
"""Of the file, which is read line by line."""

_STEP = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_T = TypeVar("_T")

METRICS_TENSOR = "metrics"
"""The shard of a checkpoint with the bytes of this file, and the name of its one tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One step, as measured on rank 0 and summed over ranks.

    `step` counts from 1. `loss` and `eval_loss` are in nats per token; `eval_loss` is None in steps
    that did not measure it. `grad_norm` is measured before clipping, and None for a step that was
    skipped because its gradients were not finite; `skipped_steps` counts these so far.
    `loss_scale` is that of the step, None if the loss is not scaled. `bubble` is the fraction of
    the pipeline phase in which ranks did not compute (`jaxpipe.trace.summary`). `sent_bytes` is the
    compressed size of all messages between ranks, gradients included; without those of MPI's own
    all-reduce and of the parameters that replicas gather. `flops_per_s` counts the model's own
    floating-point operations, over all ranks.

    With an outer loop, `loss`, `grad_norm`, `bubble` and `sent_bytes` are those of the island of
    rank 0, and `eval_loss` is that of the anchor. `outer_bytes` are those that all ranks have sent
    to other islands since the last outer step ended or the run resumed, None for a step after
    which none ended.

    `links` is the use of links in the steps since the last report, None for a step after which none
    was due.
    """

    step: int
    loss: float
    eval_loss: float | None
    grad_norm: float | None
    learning_rate: float
    step_s: float
    tokens_per_s: float
    bubble: float
    sent_bytes: int
    flops_per_s: float
    loss_scale: float | None = None
    skipped_steps: int = 0
    outer_bytes: int | None = None
    links: LinkReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedMetrics:
    """One step with paced computes over emulated links; nothing was trained.

    `step_s` are emulated seconds, `real_s` those that it took here, divided by the scale of time.
    Waits ended `late_s` real seconds late on average, and the network received messages
    `network_late_s` emulated seconds late.
    """

    truth: str
    step: int
    step_s: float
    real_s: float
    tokens_per_s: float
    flops_per_s: float
    bubble: float
    late_s: float
    network_late_s: float


class MetricsRow(msgspec.Struct, frozen=True, kw_only=True):
    """What is read one by one of a line: the `run` of an attempt, or a step; unset is absent."""

    run: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    truth: str = ""
    key: str = ""
    step: _STEP = 0
    told_step: _STEP = 0
    loss: float | None = None
    eval_loss: float | None = None
    real_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSummary:
    """A file of metrics in short, of constant size.

    `description` and `truth` are those of the last attempt that wrote to the file. `losses` and
    `held_out` are steps with their losses, thinned (`ThinnedLosses`); both have their first and
    their last.
    """

    description: dict[str, Any] | None
    truth: str
    losses: tuple[tuple[int, float], ...]
    held_out: tuple[tuple[int, float], ...]


class ThinnedLosses:
    """The losses of a run, of any number of steps in bounded memory: every n-th, and the last.

    >>> losses = ThinnedLosses(most=4)
    >>> for step in range(1, 12):
    ...     losses.append(step, 0.5)
    >>> [step for step, _ in losses.points()]
    [1, 5, 9, 11]
    """

    def __init__(self, *, most: int = 4_000) -> None:
        self._most = most
        self._stride = 1
        self._count = 0
        self._points: list[tuple[int, float]] = []
        self._last: tuple[int, float] | None = None

    def append(self, step: int, loss: float) -> None:
        """Add the loss of a step."""
        self._last = (step, loss)
        if self._count % self._stride == 0:
            self._points.append(self._last)
        self._count += 1
        if len(self._points) >= self._most:
            self._points, self._stride = self._points[::2], 2 * self._stride

    def points(self) -> tuple[tuple[int, float], ...]:
        """Return steps with their losses, fewer than `most` and the last."""
        is_in = self._last is None or self._points[-1:] == [self._last]
        return (*self._points, *(() if is_in or self._last is None else (self._last,)))


def stream_metrics(path: Path, *, level: int = logging.WARNING) -> Iterator[StepMetrics]:
    """Yield the steps of training in order; damaged lines are passed over, logged at a `level`.

    Raises:
        DataError: it cannot be read.
    """
    for metrics in read_rows(path, _step_of, level=level):
        if isinstance(metrics, StepMetrics):
            yield metrics


def read_metrics(path: Path) -> list[StepMetrics]:
    """Return all steps of training, some 2 KB of memory each; `stream_metrics` yields them.

    Raises:
        DataError: it cannot be read.
    """
    return list(stream_metrics(path))


def read_summary(path: Path, *, level: int = logging.WARNING) -> MetricsSummary:
    """Return a file of metrics in short; damaged lines are passed over, and logged at a `level`.

    Raises:
        DataError: it cannot be read.
    """
    description, truth = None, ""
    losses, held_out = ThinnedLosses(), ThinnedLosses()
    for row in read_rows(path, _row_of, level=level):
        if row.run is not msgspec.UNSET:
            description = row.run
        truth = row.truth or truth
        if row.step and row.loss is not None:
            losses.append(row.step, row.loss)
        if row.step and row.eval_loss is not None:
            held_out.append(row.step, row.eval_loss)
    return MetricsSummary(
        description=description, truth=truth, losses=losses.points(), held_out=held_out.points()
    )


def last_step(path: Path) -> int:
    """Return the last step of a metrics file, 0 if it has none.

    Raises:
        DataError: it cannot be read.
    """
    return max((row.step for row in read_rows(path, _row_of, level=logging.DEBUG)), default=0)


def read_rows(
    path: Path, parse: Callable[[bytes, MetricsRow], _T], *, level: int = logging.WARNING
) -> Iterator[_T]:
    """Yield what `parse` makes of each line and its row; of a missing file there are none.

    Damaged lines, whose checksum or fields are wrong or which `parse` refuses with a `ValueError`,
    are passed over and logged at a `level`, once; the last may be half of one, which a killed rank
    has left. Attempts of versions before checksums have none.

    Raises:
        DataError: the file cannot be read.
    """
    num_damaged, first, is_sealed = 0, "", False
    try:
        for number, line in enumerate(read_lines(path, most_bytes=_MOST_BYTES, inside=True), 1):
            content = line.rstrip(b"\r\n")
            try:
                row, is_sealed = _checked_row(content, is_sealed=is_sealed)
                parsed = parse(content, row)
            except ValueError as error:
                if not _is_half(line):
                    num_damaged += 1
                    first = first or f"line {number}: {error}"
            else:
                yield parsed
    except FileNotFoundError:
        return
    except OSError as error:
        raise DataError(
            f"`{path.name}` must be the metrics of a run: {path} cannot be read "
            f"({reason_of(error)}); name another run"
        ) from error
    if num_damaged:
        logger.log(
            level,
            "%s has damaged lines, which are passed over: %d, the first in %s",
            path,
            num_damaged,
            first,
        )


def _row_of(_: bytes, row: MetricsRow) -> MetricsRow:
    return row


def _step_of(line: bytes, row: MetricsRow) -> StepMetrics | PacedMetrics | None:
    """Return the metrics of a line, which has all fields of a step; None if it is an attempt's.

    Raises:
        ValueError: it is neither.
    """
    if row.run is not msgspec.UNSET:
        return None
    return _parsed(line, StepMetrics if row.real_s is None else PacedMetrics)


def _checked_row(line: bytes, *, is_sealed: bool) -> tuple[MetricsRow, bool]:
    """Return the row of a line, and whether the lines that follow have checksums.

    Raises:
        ValueError: the line is damaged.
    """
    has_checksum = check_line(line)
    row = _parsed(line, MetricsRow)
    if row.run is not msgspec.UNSET:
        check_depth(row.run)
    elif is_sealed and not has_checksum:
        raise ValueError("`checksum` is missing")
    return row, has_checksum


def _parsed(line: bytes, kind: type[_T]) -> _T:
    """Return a line as a value of this type; a loss may be `NaN` or `Infinity`.

    Raises:
        ValueError: it is none.
    """
    try:
        return parse_json(line, kind)
    except ValueError:
        if b"NaN" not in line and b"Infinity" not in line:
            raise
    return msgspec.convert(parse_number_json(line), kind)


def _is_half(line: bytes) -> bool:
    """Return whether a damaged line, the last, only lacks its end."""
    return not line.endswith(b"\n") and b"}" not in line[-2:]
