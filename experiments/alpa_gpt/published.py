"""Read Alpa's published tables."""

import csv
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent / "published"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The configuration of a row of tables 2.x: mesh, batch, layers, format, recomputation."""

    table: str
    dp: int
    op: int
    layers: int
    batch: int
    dtype: str
    remat: bool
    reduce_scatter: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The published measurements of a case; memory in GiB, counts by the tables' names."""

    case: Case
    tflops: float
    peak_gib: float
    seconds: float
    counts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRow:
    """One row of table 1; `compile_s` are seconds of search and compilation."""

    gpus: int
    tflops: float
    seconds: float
    peak_gib: float
    compile_s: float


def rows() -> tuple[Row, ...]:
    """Return the rows of tables 2.1 and 2.2."""
    return tuple(_row(row) for row in _read("alpa_shard_parallel.csv"))


def more_rows() -> tuple[Row, ...]:
    """Return the rows that no constant was fitted to: table 2.3, and table 2.2 in float32."""
    return tuple(_row(row) for row in _read("alpa_shard_parallel_more.csv"))


def pipeline_rows() -> tuple[PipelineRow, ...]:
    """Return the rows of table 1."""
    return tuple(
        PipelineRow(
            gpus=int(row["gpus"]),
            tflops=float(row["tflops"]),
            seconds=float(row["execute_mean_s"]),
            peak_gib=float(row["peak_mem_gb"]),
            compile_s=float(row["compile_optimize_s"]),
        )
        for row in _read("alpa_pipeshard.csv")
    )


def _row(row: dict[str, str]) -> Row:
    case = Case(
        table=row["table"],
        dp=int(row["dp"]),
        op=int(row["op"]),
        layers=int(row["layers"]),
        batch=int(row["batch"]),
        dtype=row["dtype"],
        remat=row["recompute"] != "no",
        reduce_scatter=row["table"] == "2.1",
    )
    names = ("allreduce", "allgather", "reducescatter", "all2all", "num_comm")
    return Row(
        case=case,
        tflops=float(row["tflops"]),
        peak_gib=float(row["peak_mem_gb"]),
        seconds=float(row["execute_mean_s"]),
        counts={name: int(row[name]) for name in names},
    )


def _read(name: str) -> list[dict[str, str]]:
    with (_FOLDER / name).open(newline="") as file:
        return list(csv.DictReader(file))
