"""The study of layouts by DT-FM's authors: Megatron and PyTorch Pipe on p3.16xlarge hosts.

One host (one replica, batch 64) or six (six replicas, batch 252), microbatches of 1 to 16 samples,
fp32 and fp16, with and without recomputation; some runs ended out of memory. No constant was fitted
to these seconds except the latency of a round of NVLink rings.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.progress import counted
from experiments.table import Row, percent
from jaxpipe import topo
from jaxpipe.baselines.published.published_systems import system_peak_bytes, system_step
from jaxpipe.baselines.published.workload import Workload
from jaxpipe.baselines.systems import System
from jaxpipe.simulate import Constants, simulate_ends
from jaxpipe.topo.gpu import Precision

_FILE = Path(__file__).parent / "published" / "dtfm_gpt3_xl_megatron_seconds.csv"
_LAYOUTS = {
    "t8": System.MEGATRON_T8,
    "p8": System.MEGATRON_P8,
    "t4p2": System.MEGATRON_P2T4,
    "t2p4": System.MEGATRON_P4T2,
}
_LAYERS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCell:
    """One published run; without seconds it ended out of memory."""

    system: System
    workload: Workload
    num_replicas: int
    seconds: float | None
    is_doubtful: bool


def layout_cells() -> tuple[LayoutCell, ...]:
    """Return the published runs."""
    with _FILE.open(newline="") as file:
        return tuple(_cell(row) for row in csv.DictReader(file))


def _cell(row: dict[str, str]) -> LayoutCell:
    is_pipe = row["system"] == "pytorch_pipe"
    return LayoutCell(
        system=System.PYTORCH_PIPE if is_pipe else _LAYOUTS[row["layout"]],
        workload=Workload(
            num_layers=_LAYERS,
            batch=int(row["global_batch"]),
            precision=Precision.FP32 if row["dtype"] == "float32" else Precision.FP16,
            microbatch=int(row["microbatch"]),
            recompute=row["recompute"] != "no",
        ),
        num_replicas=int(row["data_parallel"]),
        seconds=float(row["seconds"]) if row["seconds"] else None,
        is_doubtful="doubtful" in row["note"],
    )


def layout_rows(constants: Constants) -> list[Row]:
    """Return a row for each published run: seconds and memory, published and simulated."""
    return [_row(cell, constants) for cell in counted(layout_cells(), "layouts")]


def _row(cell: LayoutCell, constants: Constants) -> Row:
    cluster = topo.load(f"case1-datacenter:hosts={cell.num_replicas}")
    workload = cell.workload
    needed = system_peak_bytes(cell.system, cluster, workload=workload)
    memory_bytes = cluster.devices[0].memory_bytes
    assert memory_bytes is not None, cluster.devices[0]
    assert needed is not None, cell
    job = system_step(cell.system, cluster, workload=workload, constants=constants)
    seconds = simulate_ends(job).seconds
    error = "" if cell.seconds is None else percent(seconds / cell.seconds - 1)
    return {
        "system": cell.system.value,
        "hosts": cell.num_replicas,
        "precision": workload.precision.value,
        "recompute": "yes" if workload.recompute else "no",
        "microbatch": workload.microbatch,
        "published_s": "out of memory" if cell.seconds is None else cell.seconds,
        "simulated_s": seconds,
        "error": error,
        "simulated_gib": needed / 2**30,
        "fits": "yes" if needed <= memory_bytes else "no",
        "doubtful": "yes" if cell.is_doubtful else "",
    }


def layout_summary(rows: Sequence[Row]) -> list[Row]:
    """Return errors by hosts and precision, without doubtful runs, and how many fits are right."""
    summary: list[Row] = []
    for hosts, precision in ((1, "fp32"), (6, "fp32"), (6, "fp16"), (None, "all")):
        chosen = [
            row
            for row in rows
            if hosts is None or (row["hosts"], row["precision"]) == (hosts, precision)
        ]
        errors = np.array(
            [
                abs(float(row["simulated_s"]) / row["published_s"] - 1)
                for row in chosen
                if isinstance(row["published_s"], float) and not row["doubtful"]
            ]
        )
        right = sum(
            (row["fits"] == "yes") == isinstance(row["published_s"], float) for row in chosen
        )
        summary.append(
            {
                "hosts": "all" if hosts is None else hosts,
                "precision": precision,
                "runs with seconds": len(errors),
                "median absolute error": f"{100 * np.median(errors):.1f} %",
                "largest absolute error": f"{100 * errors.max():.1f} %",
                "fits or not, right": f"{right} of {len(chosen)}",
            }
        )
    return summary
