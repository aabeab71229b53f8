"""Make this process a rank: what has to come before jax and MPI start.

::

    mpirun of ours       plan.toml ────────────────┐
    mpirun of the user   none yet: rank 0 prepares ├─► cores, devices, compile cache ─► run_rank
    the only rank        the launcher's own ───────┘
"""

import os
from pathlib import Path

from jaxpipe.config import Config, check_here, check_paced, check_plan_fits
from jaxpipe.plan import ResolvedPlan, read_resolved_plan
from jaxpipe.run.folder.prepare_run import Prepared
from jaxpipe.run.train_request import TrainRequest, load_hooks
from jaxpipe.runtime.process.affinity import pin
from jaxpipe.runtime.process.compile_cache import use_compile_cache
from jaxpipe.runtime.process.gpu_assignment import number_on_host, take_devices
from jaxpipe.runtime.process.launched_rank import LaunchedRank, check_launched_rank
from jaxpipe.runtime.process.process_signals import die_with_parent
from jaxpipe.runtime.process.ulfm_support import check_survival
from jaxpipe.runtime.rank_mesh import rank_mesh
from jaxpipe.runtime.run_config import ComputeKind, Survival
from jaxpipe.runtime.watchdog.rank_start import StartPhase, write_start


def start_rank(request: TrainRequest, config: Config, origin: LaunchedRank | Prepared) -> int:
    """Train as one of the ranks that an MPI has started, or as the only one of a prepared run.

    Raises:
        UserError: the input is wrong.
        RunError: the run has failed.
    """
    if isinstance(origin, Prepared):
        rank, resolved, checkpoint = 0, origin.resolved, origin.checkpoint
    else:
        rank, resolved, checkpoint = origin.rank, _launched_plan(request, config, origin), None
        if request.plan is not None:  # a launcher of ours waits for it
            write_start(Path(config.run.folder), rank, StartPhase.STARTING_MPI)
        # Before jax and MPI start: XLA makes as many threads as the process has cores, and takes
        # all GPUs that it sees.
        die_with_parent()
        pin(os.environ)
        _take_devices(config, resolved, rank=rank)
    use_compile_cache(os.environ)
    hooks = load_hooks(request.hooks, request.config, rank=rank)

    from jaxpipe.run.rank.run_rank import Start, run_rank  # loads jax and MPI

    return run_rank(
        Start(
            request=request,
            config=config,
            hooks=hooks,
            is_launched=isinstance(origin, LaunchedRank),
            resolved=resolved,
            checkpoint=checkpoint,
        )
    )


def _launched_plan(
    request: TrainRequest, config: Config, here: LaunchedRank
) -> ResolvedPlan | None:
    """Return the plan of a launcher of ours, and check that this process can be a rank of it."""
    resolved = None if request.plan is None else read_resolved_plan(request.plan)
    num_ranks = config.plan.num_ranks if resolved is None else resolved.plan.num_ranks
    if num_ranks is not None:  # else rank 0 compares, when it has read `plan.file`
        check_launched_rank(here, num_ranks=num_ranks)
    if resolved is not None:
        check_plan_fits(config, resolved.plan, source=str(request.plan))
    check_here(config, None if resolved is None else resolved.plan, os.environ)
    if config.run.compute is ComputeKind.PACED:
        check_paced(config, resume=request.resume)
    if config.run.survive is Survival.SHRINK:
        check_survival(os.environ)
    return resolved


def _take_devices(config: Config, resolved: ResolvedPlan | None, *, rank: int) -> None:
    if resolved is None:
        take_devices(os.environ, each=config.mesh.num_devices)
        return
    take_devices(
        os.environ,
        each=rank_mesh(resolved.plan, config.mesh, rank=rank).num_devices,
        number=number_on_host(resolved.devices, rank),
        group=resolved.groups[rank],
    )
