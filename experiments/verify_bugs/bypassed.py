"""The converse of the table of compatibility: what it refuses would fail, or mean nothing.

Each row is run by four ranks in threads, without the table. Ranks that fail show that the refusal
is right. Where they compute, `PRINCIPLE` has to say why the row is there all the same.

`python -m experiments.verify_bugs.bypassed` writes `results/bypassed.csv`; a command that was
interrupted continues.
"""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import tyro

from experiments.table import append_csv, read_csv
from experiments.verify_bugs.pairs import NUM_DEVICES
from jaxpipe.config import compatibility
from jaxpipe.config.compatibility import EXCLUSIONS, Exclusion
from jaxpipe.runtime.process.quick_compiles import quick_flags, threads_of_devices

RESULTS = Path(__file__).parent / "results" / "bypassed.csv"

COMPUTE, FAIL, NOT_HERE = "compute", "fail", "need a GPU"
NO_SERVER = "need a merge server"

_IGNORED = "the emulation leaves it out, so its times would be those of another run"
_IDLE = "the setting would do nothing"
_NOT_COMPARED = "ranks compute, and what they compute was not compared with one device"
_ON_LOSS = "ranks compute until one is lost, and then cannot continue"
_BESIDE_BOTTLENECKS = (
    "`mesh` of several devices",
    "`plan.file` with several devices per rank",
    "`outer.islands` > 0",
    "`lora.rank` > 0",
    "`train.frozen` given",
    "`data.pack` = true",
    "`run.compute` = paced",
)
PRINCIPLE = {
    **{("`model.bottlenecks` given", other): _NOT_COMPARED for other in _BESIDE_BOTTLENECKS},
    ("`run.compute` = paced", "`run.transport` = nccl"): _IDLE,
    ("`run.compute` = paced", "`comm.gradients` ≠ none"): _IGNORED,
    ("`run.compute` = paced", "`outer.codec` ≠ none"): _IGNORED,
    ("`run.compute` = paced", "`mesh` of several devices"): _IGNORED,
    ("`run.compute` = paced", "`run.trackers` given"): _IDLE,
    ("`run.compute` = paced", "`run.survive` = shrink"): _IDLE,
    ("`run.survive` = shrink", "`run.transport` = nccl"): _ON_LOSS,
    ("`run.survive` = shrink", "`run.transport` = shaped"): _ON_LOSS,
    ("`outer.islands` > 0", "`run.survive` = shrink"): _ON_LOSS,
    ("`outer.islands` > 0", "`run.transport` = nccl"): "threads have no NCCL, over which it fails",
    ("`mesh.context` > 1", "`model.dropout` > 0"): "the devices of a rank would drop alike",
    (
        "`plan.file` with several devices per rank",
        "`mesh` of several devices",
    ): "both decide the mesh, and one would be ignored",
    (
        "`optimizer.sharded` = true",
        "`optimizer.name` = muon",
    ): "updates are not those of one device: the certificate finds them wrong",
    ("`outer.eager` = true", "`outer.delay` > 0"): _IDLE,
    ("`outer.eager` = true", "`outer.local_fraction` > 0"): _IDLE,
    ("`outer.codec` ≠ none", "`outer.islands` = 1"): _IDLE,
    ("`model.classes` > 0", "`model.causal` = true"): "the head would see the first token alone",
    ("`optimizer.master_weights` = true", "`model.param_dtype` = float32"): _IDLE,
}
"""Rows of which ranks compute something, and why they are refused."""


def names_of(row: Exclusion) -> tuple[str, str]:
    """Return the two settings of a row."""
    return str(row.first), str(row.second)


def _outcome(folder: Path, names: tuple[str, str]) -> tuple[str, str]:
    """Return whether ranks fail without the table, and their error."""
    from experiments.verify_bugs.tiny_runs import config_and_plan, pace
    from jaxpipe.run.rank import threads
    from jaxpipe.runtime.run_config import ComputeKind
    from jaxpipe.runtime.stage.compile_once import CompileOnce
    from jaxpipe.runtime.step import worker

    if any("flash" in name for name in names):
        return NOT_HERE, ""
    if any("quorum" in name for name in names):
        return NO_SERVER, ""
    with ExitStack() as bypass:
        bypass.enter_context(patch.object(compatibility, "EXCLUSIONS", ()))
        for check in ("_check_threads", "_check_all_reduce"):
            bypass.enter_context(patch.object(threads, check))
        bypass.enter_context(patch.object(worker, "compile_stage", CompileOnce()))
        try:
            config, plan = config_and_plan(folder, names)
            shutil.rmtree(config.run.folder, ignore_errors=True)
            if config.run.compute is ComputeKind.PACED:
                pace(config, plan)
            else:
                threads.train(config)
        except Exception as error:
            return FAIL, f"{type(error).__name__}: {error}"
    return COMPUTE, ""


def main(*, results: Path = RESULTS, folder: Path = Path("build/bypassed")) -> int:
    """Run all rows without the table; return how many compute without a reason to refuse them."""
    os.environ["XLA_FLAGS"] = quick_flags(os.environ.get("XLA_FLAGS", ""), num_devices=NUM_DEVICES)
    os.environ.update(threads_of_devices(os.environ, num_devices=NUM_DEVICES))
    rows = read_csv(results) if results.exists() else []
    known = {(row["first"], row["second"]) for row in rows}
    for names in map(names_of, EXCLUSIONS):
        if names in known:
            continue
        ranks, error = _outcome(folder, names)
        row = {"first": names[0], "second": names[1], "ranks": ranks, "error": error[:200]}
        append_csv(row, results)
        rows.append(row)
    return sum(
        row["ranks"] == COMPUTE and (row["first"], row["second"]) not in PRINCIPLE for row in rows
    )


if __name__ == "__main__":
    raise SystemExit(min(1, tyro.cli(main)))
