"""One rank of a paced execution; `paced` starts the ranks."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from experiments.compare_group.cases import Cases, Setting, read_cases
from experiments.compare_group.jobs import Group
from experiments.compare_group.paced import LATE_COLUMN, TABLE, read_rows
from experiments.compare_group.simulated import TABLE as SIMULATED
from experiments.table import Row, append_csv
from jaxpipe.comm.mpi.mpi_transport import MpiTransport
from jaxpipe.paced import Outcome, Scale, execute, planned_all_reduces
from jaxpipe.runtime.process.process_signals import die_with_parent
from jaxpipe.simulate import dtfm_constants

_TIMEOUT_S = 600.0
_FASTEST = 0.2
"""The smallest time scale: real seconds per emulated second."""


def main() -> None:
    """Execute all jobs of the command line; rank 0 writes a row after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("jobs", nargs="+", metavar="CASE:SETTING")
    options = parser.parse_args()
    die_with_parent()
    cases, transport = read_cases(), MpiTransport()
    for number, name in enumerate(options.jobs, 1):
        case_name, _, setting_name = name.partition(":")
        setting = Setting(setting_name)
        group = _group(cases, case_name, options.folder)
        plan, simulated = group.plan(setting), _simulated(group, setting, options.folder)
        scale = Scale(time=max(_FASTEST, options.seconds / float(simulated["simulated_s"])))
        all_reduces = None if plan is None else planned_all_reduces(plan, group.conditions)
        outcome = execute(
            group.job(setting),
            transport,
            scale=scale,
            all_reduces=all_reduces,
            timeout_s=_TIMEOUT_S,
        )
        if outcome is not None:
            row = _row(outcome, simulated, scale=scale)
            append_csv(row, options.folder / TABLE, number=".3f")
            print(f"{number}/{len(options.jobs)}", *row.values(), sep=" | ", flush=True)
    transport.close()


def _group(cases: Cases, name: str, folder: Path) -> Group:
    (case,) = [case for case in cases.cases if case.name == name]
    return Group(case=case, cases=cases, constants=dtfm_constants(), plans=folder / "plans")


def _simulated(group: Group, setting: Setting, folder: Path) -> dict[str, str]:
    (row,) = [
        row
        for row in read_rows(folder / SIMULATED)
        if (row["case"], row["setting"]) == (group.case.name, setting.value)
    ]
    return row


def _row(outcome: Outcome, simulated: Mapping[str, str], *, scale: Scale) -> Row:
    published, seconds = simulated["published_s"], outcome.step_s
    return {
        "case": simulated["case"],
        "setting": simulated["setting"],
        "runs": simulated["runs"],
        "truth": "emulated, paced",
        "published_s": published,
        "simulated_s": simulated["simulated_s"],
        "paced_s": seconds,
        "paced / published": seconds / float(published) if published else "",
        "paced / simulated": seconds / float(simulated["simulated_s"]),
        "machine_s": outcome.real_s,
        "time_scale": scale.time,
        "waits late, mean ms": 1e3 * outcome.waits.mean_s,
        LATE_COLUMN: 1e3 * outcome.network.mean_s,
        "messages late, most ms": 1e3 * outcome.network.largest_s,
    }


if __name__ == "__main__":
    main()
