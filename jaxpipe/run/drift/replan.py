"""A new plan for a cluster whose links have changed, beside the plan that is running.

Rank 0 starts this module as a process of its own, at a low priority: a search in the process
of the rank would take the interpreter from its training.
"""

import json
import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from jaxpipe.collective import CodecLimit, codecs_within
from jaxpipe.config import Config, cluster_from, load_config
from jaxpipe.config.resolve import check_plan_fits
from jaxpipe.errors import ConfigError, JaxpipeError
from jaxpipe.plan import Plan, PlanConfig, write_plan
from jaxpipe.propose.boundary_codecs import with_boundary_codecs
from jaxpipe.propose.query import Query, executable
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.drift.new_plan import CLUSTER_FILE, PLAN_FILE, Replanned
from jaxpipe.run.folder.prepare_run import PLAN_FILE as RUN_PLAN_FILE
from jaxpipe.schedule import Remat
from jaxpipe.search import Effort, Task, search
from jaxpipe.search.build_plan import with_suited_trees
from jaxpipe.simulate import plan_step_s, step_objective


def replan(
    config: Config, *, cluster: Path, out: Path, budget_s: float, tflops: float
) -> Replanned:
    """Simulate the plan of `config` over the cluster in a file, search a new one, and write it.

    `budget_s` are seconds of the processor, which the training beside it keeps busy. `tflops` is
    the speed of devices whose speed neither the cluster nor `paced` states.

    Raises:
        UserError: no plan fits, the speed of a device is unknown, or the run has an outer loop.
    """
    if config.outer.islands > 1:
        raise ConfigError(
            f"a new plan is searched for sums in every step: `outer.islands` is "
            f"{config.outer.islands}"
        )
    measured = cluster_from(replace(config, plan=replace(config.plan, cluster=str(cluster))))
    # A plan file names its cluster, and devices by their names: the measured one may have fewer.
    present = plan_from(_decided(config), replace(measured, name=cluster_from(config).name))
    # All of the plan is free: what was right for the links as they were need not be.
    config = replace(
        config,
        plan=PlanConfig(cluster=str(cluster), codecs=config.plan.codecs),
        paced=replace(config.paced, tflops=config.paced.tflops or tflops),
    )
    task, conditions = Query(config=config, cluster=measured).task(present.remat or Remat.NONE)
    limit, of_search = config.plan.codecs, conditions
    if limit is not CodecLimit.NONE:
        # With the fewest bytes, as a plan that chooses its codecs afterwards is searched for.
        hardest = codecs_within(limit, for_gradients=False)[-1]
        of_search = replace(conditions, codecs=replace(conditions.codecs, boundary=hardest))
    effort = Effort(seconds=budget_s, num_changes=10**6)
    objective = step_objective(of_search)
    result = search(task, executable(config, objective), effort=effort, clock=time.process_time)
    home = measured.devices[present.device(0)].host
    new = replace(begins_on(home, result.plan, task), remat=present.remat)
    if limit is not CodecLimit.NONE:
        new = with_boundary_codecs(new, conditions, limit)
    check_plan_fits(config, new, source="the new plan")
    write_plan(new, measured, out, about="For the links as they were measured.")
    return Replanned(
        present_s=plan_step_s(present, conditions),
        new_s=plan_step_s(new, conditions),
        keeps_rank_0=measured.devices[new.device(0)].host == home,
    )


def _decided(config: Config) -> Config:
    """Return the configuration with the plan that the run executes, if it was searched."""
    if config.plan.is_decided or config.plan.file is not None:
        return config
    return replace(config, plan=replace(config.plan, file=RUN_PLAN_FILE))


def begins_on(host: str, plan: Plan, task: Task) -> Plan:
    """Return the plan with a replica first that begins on a host, if one does."""
    devices = task.cluster.devices
    order = sorted(plan.pipelines, key=lambda each: devices[each.devices[0]].host != host)
    return with_suited_trees(task, replace(plan, pipelines=tuple(order)))


def main(folder: str, budget_s: str, tflops: str) -> int:
    """Replan the run in a folder, and print the seconds, or why there are none, as JSON."""
    cluster, plan = (Path(folder).resolve() / name for name in (CLUSTER_FILE, PLAN_FILE))
    # The configuration in a run folder names its files from there.
    os.chdir(folder)
    try:
        found = replan(
            load_config("run.toml", notice=None),
            cluster=cluster,
            out=plan,
            budget_s=float(budget_s),
            tflops=float(tflops),
        )
    except JaxpipeError as error:
        return _write({"error": str(error)})
    return _write(asdict(found))


def _write(found: dict[str, Any]) -> int:
    sys.stdout.write(f"{json.dumps(found)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
