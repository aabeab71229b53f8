"""The metrics of a step, and the file of JSON lines that they are written to."""

import json
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec

from jaxpipe.errors import DataError
from jaxpipe.foreign_file import parse_number_json, read_lines, reason_of
from jaxpipe.trace import LinkReport

logger = logging.getLogger(__name__)

METRICS_FILE, TRACE_FILE, PICTURE_FILE = "metrics.jsonl", "trace.json", "timeline.png"
"""The files of rank 0 in the folder of a run: metrics, trace of the last steps, its picture."""

_MOST_BYTES = 2**33
"""Of the file, which is read line by line."""

MAX_WAITING_LINES = 100_000
"""Lines that a full disk keeps in memory, some 50 MB."""


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


class MetricsFile:
    """A file of JSON lines: first the description of the run, then one line per step.

    A resumed run continues the same file; lines of steps that it repeats are dropped. `key`
    identifies the run, and is read from the file of a resumed run. `truth` says whether the figures
    are measured or emulated. `logged_step` is the last step
    that any attempt of the run has written, dropped lines included.
    """

    def __init__(
        self,
        path: Path,
        description: Mapping[str, Any],
        *,
        first_step: int,
        truth: str = "",
        key: str = "",
    ) -> None:
        rows = list(_rows(path))
        earlier = [row for _, row in rows] if first_step > 0 else []
        self.key = next((row["key"] for row in earlier if row.get("key")), key)
        # Files call it "told_step", also those of earlier versions: the name in them stays.
        logged = (max(row.get("step", 0), row.get("told_step", 0)) for row in earlier)
        self.logged_step = max(logged, default=0)
        lines_before = [line.decode() for line, row in rows if row.get("step", 0) <= first_step]
        path.parent.mkdir(parents=True, exist_ok=True)
        # Replaced as a whole: a crash in between must not lose the lines of earlier steps.
        draft = path.with_suffix(".tmp")
        header = {
            "run": description,
            "truth": truth,
            "key": self.key,
            "told_step": self.logged_step,
        }
        draft.write_text("".join(f"{line}\n" for line in (*lines_before, json.dumps(header))))
        draft.replace(path)
        self._path = path
        self._waiting = deque[str](maxlen=MAX_WAITING_LINES)

    def write(self, metrics: StepMetrics | PacedMetrics) -> None:
        """Append a line, readable at once.

        On a full disk it waits in memory, with a warning, and is written with that of a later step;
        of more than `MAX_WAITING_LINES`, the oldest are lost.
        """
        first_failure = not self._waiting
        self._waiting.append(json.dumps(asdict(metrics)) + "\n")
        size = self._path.stat().st_size
        try:
            with self._path.open("a") as file:
                file.writelines(self._waiting)
        except OSError as error:
            # Part of the lines may be on the disk; the next ones would be appended to it.
            os.truncate(self._path, size)
            if first_failure:
                logger.warning(
                    "the metrics of step %d wait until they can be written, training continues: %s",
                    metrics.step,
                    error,
                )
            return
        if not first_failure:
            logger.warning(
                "the metrics of %d steps that had to wait are written", len(self._waiting) - 1
            )
        self._waiting.clear()


def read_metrics(path: Path) -> list[StepMetrics]:
    """Return the steps of training in order; damaged ones are passed over with a warning.

    Raises:
        DataError: it cannot be read.
    """
    rows = [row for _, row in _rows(path, check=_check_step)]
    return [msgspec.convert(row, StepMetrics) for row in rows if not {"run", "real_s"} & row.keys()]


def last_step(path: Path) -> int:
    """Return the last step of a metrics file, 0 if it has none.

    Raises:
        DataError: it cannot be read.
    """
    return max((row.get("step", 0) for _, row in _rows(path, level=logging.DEBUG)), default=0)


def read_description(path: Path) -> dict[str, Any] | None:
    """Return the description by the last attempt that wrote to the file, None if there is none.

    Raises:
        DataError: it cannot be read.
    """
    described = [row["run"] for _, row in _rows(path) if "run" in row]
    return described[-1] if described else None


def read_truth(path: Path) -> str:
    """Return whether the figures are measured or emulated, as the last attempt wrote it.

    Raises:
        DataError: it cannot be read.
    """
    rows = _rows(path, level=logging.DEBUG)
    truths = [row["truth"] for _, row in rows if row.get("truth")]
    return truths[-1] if truths else ""


def read_losses(path: Path, kind: str) -> list[tuple[int, float]]:
    """Return step and loss of a kind, where it was measured; steps of paced runs have none.

    Raises:
        DataError: it cannot be read.
    """
    return [
        (row["step"], float(row[kind]))
        for _, row in _rows(path, level=logging.DEBUG)
        if "step" in row and row.get(kind) is not None
    ]


_STEP = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _Known(TypedDict, total=False):
    """The fields of a line that are read one by one."""

    run: dict[str, Any]
    truth: str
    key: str
    step: _STEP
    told_step: _STEP
    loss: float | None
    eval_loss: float | None


def _check_row(row: Any) -> None:
    """Check that the fields of a line that are read one by one have their types.

    Raises:
        ValueError: one has not; msgspec's error is one.
    """
    msgspec.convert(row, _Known)


def _check_step(row: Any) -> None:
    """Check that a line describes an attempt, or has all fields of a step, of training or paced.

    Raises:
        ValueError: it is neither.
    """
    _check_row(row)
    if "run" not in row:
        msgspec.convert(row, PacedMetrics if "real_s" in row else StepMetrics)


def _rows(
    path: Path, *, level: int = logging.WARNING, check: Callable[[Any], None] = _check_row
) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield the lines and what they say; of a missing file there are none.

    Damaged lines, which do not pass the `check`, are passed over and logged at a `level`; the last
    may be half of one, which a killed rank has left.

    Raises:
        DataError: the file cannot be read.
    """
    damaged: dict[int, str] = {}
    number, line = 0, b""
    try:
        for number, line in enumerate(read_lines(path, most_bytes=_MOST_BYTES, inside=True), 1):
            try:
                row = parse_number_json(line)
                check(row)
            except ValueError as error:
                damaged[number] = str(error)
            else:
                yield line, row
    except FileNotFoundError:
        return
    except OSError as error:
        raise DataError(
            f"`{path.name}` must be the metrics of a run: {path} cannot be read "
            f"({reason_of(error)}); name another run"
        ) from error
    if not line.endswith(b"}"):
        damaged.pop(number, None)
    for first, why in tuple(damaged.items())[:1]:
        logger.log(
            level,
            "%s has damaged lines, which are passed over: %d, the first in line %d: %s",
            path,
            len(damaged),
            first,
            why,
        )
