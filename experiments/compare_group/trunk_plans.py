"""Our plans searched with trunks between regions, beside those searched without; simulated.

`sharing` simulates the stored plans over trunks for which nothing was searched. Here the search
knows the trunks: every region pair shares what one pair of devices has alone.
"""

import time
from pathlib import Path

from experiments.compare_group.cases import Cases, cluster_of
from experiments.compare_group.plans import conditions_of
from experiments.compare_group.sharing import TABLE as SHARING
from experiments.dtfm_iteration_time.planned import planner_input, shape_of
from experiments.progress import counted
from experiments.table import Row, markdown, read_csv, write_csv
from jaxpipe.search import Effort, search
from jaxpipe.simulate import dtfm_constants, plan_step_s, step_objective
from jaxpipe.topo import with_trunks_of_one_pair

TABLE = "trunk_plans"


def search_with_trunks(cases: Cases, folder: Path, *, cpu_s: float) -> list[Row]:
    """Search a plan for each case of several regions, write the table, and return its rows."""
    known = {row["case"]: row for row in read_csv(folder / f"{SHARING}.csv")}
    chosen = [case for case in cases.cases if case.name in known]
    constants, rows = dtfm_constants(), list[Row]()
    for case in counted(chosen, "cases"):
        cluster = with_trunks_of_one_pair(cluster_of(case, batch=cases.batch))
        task, conditions = planner_input(cluster, workload=cases.workload, constants=constants)
        effort = Effort(seconds=cpu_s, num_changes=10**6)
        # Processor time, so that other load on the machine does not change the result.
        found = search(task, step_objective(conditions), effort=effort, clock=time.process_time)
        plan = found.plan
        seconds = plan_step_s(plan, conditions_of(cluster, cases.workload, constants))
        before = known[case.name]
        theirs_s = {name: float(before[f"{name}, a trunk of one pair"]) for name in _THEIRS}
        rows.append(
            {
                "case": case.name,
                "plan without trunks": before["plan"],
                "its seconds with trunks": float(before["ours, a trunk of one pair"]),
                "plan searched with trunks": f"{shape_of(plan)}, {plan.all_reduce.value}",
                "seconds": seconds,
                **{f"{name} / that": their_s / seconds for name, their_s in theirs_s.items()},
            }
        )
        # At once: a search takes long.
        write_csv(rows, folder / f"{TABLE}.csv", number=".2f")
        (folder / f"{TABLE}.md").write_text(markdown(rows, number=".2f") + "\n")
    print(markdown(rows, number=".2f"))
    return rows


_THEIRS = ("dtfm", "megatron")
