"""What the gains of our plans owe to links between regions that share nothing; simulated.

Every network of several regions is simulated as its links were measured, pair by pair, and with a
trunk between all regions that is as fast as one pair. FluidStack has such a trunk between East and
Middle (`experiments.dtfm_iteration_time`). Cases 3 to 5 were shaped by tc, pair by pair; of the
regions that they imitate nothing says which is right. The plans were searched for unshared links.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.compare_group.cases import Case, Cases, Setting
from experiments.compare_group.jobs import Group
from experiments.dtfm_iteration_time.planned import shape_of
from experiments.progress import counted
from experiments.table import Row, markdown, write_csv
from jaxpipe.simulate import StepModel, dtfm_constants, simulate_ends
from jaxpipe.topo import with_trunks_of_one_pair

TABLE = "sharing"
_THEIRS = {"dtfm": Setting.DTFM, "megatron": Setting.MEGATRON_P8}
_UNSHARED, _SHARED = "links unshared", "a trunk of one pair"


def measure_sharing(cases: Cases, folder: Path) -> list[Row]:
    """Simulate ours and theirs both ways, write table and picture, and return the rows."""
    chosen = [case for case in cases.cases if len(_group(case, cases, folder).cluster.regions) > 1]
    rows = [_row(_group(case, cases, folder)) for case in counted(chosen, "cases")]
    write_csv(rows, folder / f"{TABLE}.csv", number=".2f")
    (folder / f"{TABLE}.md").write_text(markdown(rows, number=".2f") + "\n")
    draw_sharing(rows, folder / f"{TABLE}.png")
    print(markdown(rows, number=".2f"))
    return rows


def _group(case: Case, cases: Cases, folder: Path) -> Group:
    return Group(case=case, cases=cases, constants=dtfm_constants(), plans=folder / "plans")


def _row(group: Group) -> Row:
    ours = group.plan(Setting.OURS)
    assert ours is not None, group.case
    jobs = {name: group.job(setting) for name, setting in _THEIRS.items()}
    jobs = {"ours": group.job(Setting.OURS)} | jobs
    seconds = {
        (name, words): simulate_ends(step).seconds
        for name, job in jobs.items()
        for words, step in ((_UNSHARED, unshared(job)), (_SHARED, shared(job)))
    }
    return {
        "case": group.case.name,
        "plan": f"{shape_of(ours)}, {ours.all_reduce.value}",
        **{f"{name}, {words}": step_s for (name, words), step_s in seconds.items()},
        **{
            f"{name} / ours, {words}": seconds[name, words] / seconds["ours", words]
            for name in _THEIRS
            for words in (_UNSHARED, _SHARED)
        },
    }


def unshared(job: StepModel) -> StepModel:
    """Return the step where the links between regions share nothing."""
    return replace(job, cluster=replace(job.cluster, trunks=()))


def shared(job: StepModel) -> StepModel:
    """Return the step where all links from a region to another share what the fastest has."""
    return replace(job, cluster=with_trunks_of_one_pair(unshared(job).cluster))


def draw_sharing(rows: Sequence[Row], path: Path) -> None:
    """Draw the gain over DT-FM and over Megatron on each network, both ways."""
    figure = Figure(figsize=(10, 4), dpi=100, layout="constrained")
    for number, name in enumerate(_THEIRS, 1):
        axes = figure.add_subplot(1, len(_THEIRS), number)
        places = np.arange(len(rows))
        for offset, words, color in ((-0.2, _UNSHARED, "#a8d8c3"), (0.2, _SHARED, "#3a9d78")):
            gains = [float(row[f"{name} / ours, {words}"]) for row in rows]
            bars = axes.bar(places + offset, gains, width=0.38, color=color, label=words)
            axes.bar_label(bars, [f"{gain:.2f}" for gain in gains], fontsize=7)
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_xticks(places, [str(row["case"]) for row in rows], fontsize=8)
        axes.set_title(f"seconds of {name} / ours (simulated)", loc="left", fontsize=9)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)
