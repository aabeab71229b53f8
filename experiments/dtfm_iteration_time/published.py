"""Read the published times."""

import csv
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent / "published"

CLUSTERS = {
    1: "case1-datacenter",
    2: "case2-spot",
    3: "case3-universities",
    4: "case4-regional",
}
"""The name in topo's catalogue of each published case."""

FITTED_CASES = (1, 2, 3)
"""The cases to which constants were fitted."""

ALL_CLUSTERS = (
    *CLUSTERS.values(),
    "case5-worldwide",
    "fluidstack-2region",
    "fluidstack-3region",
)
"""The clusters on which DT-FM's authors ran, also those whose times are not here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One published run: fp16, 64 devices. Without a seed the run was done once."""

    case: int
    system: str
    layers: int
    batch: int
    seed: int | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineCell:
    """One published run of the fp32 pipeline of 12 stages, over links of one kind."""

    delay_ms: float
    bandwidth_gbps: float
    num_replicas: int
    seconds: float


def cells() -> tuple[Cell, ...]:
    """Return the published iteration times of cases 1 to 4."""
    return tuple(
        Cell(
            case=int(row["case"]),
            system=row["system"],
            layers=int(row["layers"]),
            batch=int(row["batch"]),
            seed=int(row["seed"]) if row["seed"] else None,
            seconds=float(row["seconds"]),
        )
        for name in ("dtfm_iteration_seconds.csv", "dtfm_iteration_seconds_case4.csv")
        for row in _rows(name)
    )


def pipeline_cells() -> tuple[PipelineCell, ...]:
    """Return the published times of the fp32 pipeline."""
    return tuple(
        PipelineCell(
            delay_ms=float(row["delay_ms"]),
            bandwidth_gbps=float(row["bandwidth_gbps"]),
            num_replicas=int(row["data_parallel_degree"]),
            seconds=float(row["seconds"]),
        )
        for row in _rows("dtfm_gpt3_xl_pipeline_seconds.csv")
    )


def _rows(name: str) -> list[dict[str, str]]:
    with (_FOLDER / name).open(newline="") as file:
        return list(csv.DictReader(file))
