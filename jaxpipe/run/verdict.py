"""The verdict on a configuration and its plan, before any process starts.

::

    train --check ─┐                              ┌─ settings, mesh, outer loop, model, batch
    train, run     ├─► resolve ─► check_can_run ──┼─ memory of each device
    show, simulate │                              ├─ backend of this host
    plan           ┘                              ├─ headers of the datasets that are there
                                                  └─ of a paced run in place of these, its costs

What a run alone needs comes after it, in `prepare`: whole datasets, its folder, its checkpoint.
"""

from collections.abc import Mapping

from jaxpipe.config import Config, check_here, check_plan_fits, check_prepared_data
from jaxpipe.plan import Plan
from jaxpipe.propose.conditions import conditions_of
from jaxpipe.run.forecast.plan_memory import check_memory, plan_memory, shared_bytes
from jaxpipe.runtime.run_config import ComputeKind
from jaxpipe.topo import Cluster
from jaxpipe.topo.this_machine import is_this_machine


def check_can_run(
    config: Config, plan: Plan, cluster: Cluster, *, environment: Mapping[str, str]
) -> None:
    """Check all that is known of a run from its configuration, plan, cluster and backend.

    A paced run needs neither memory nor data, but the speed of each device. The backend is that of
    the devices on this machine alone: those of other clusters are elsewhere, or emulated.

    Raises:
        UserError: the run would be refused, or fail, by its ranks.
    """
    check_plan_fits(config, plan, source=config.plan.file or "the plan")
    if config.run.compute is ComputeKind.PACED:
        conditions_of(config, cluster, remat=plan.remat)
        return
    check_memory(plan_memory(config, plan, cluster), shared_room=shared_bytes(cluster))
    if is_this_machine(cluster.name):
        check_here(config, plan, environment)
    check_prepared_data(config)
