"""Training from Python: the ranks of a run as threads of this process.

::

    config ──► plan ──► job ──┬─► thread of rank 0 ──► observe(metrics) after each step
                              ├─► thread of rank 1       └─► Outcome
                              └─► ...

The programs, schedules and all-reduces are those of `jaxpipe train`; messages are copied within the
process instead of crossing MPI, and no launcher is needed. Python's interpreter lock and the
compute threads of XLA are shared by all ranks, so this is for small models and for notebooks.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from jaxpipe.collective import AllReduceKind
from jaxpipe.comm import Transport, closing, run_ranks
from jaxpipe.config import Config, check_run, cluster_from, job_from, place_of
from jaxpipe.errors import ConfigError
from jaxpipe.models import ModelConfig
from jaxpipe.plan import Plan
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.folder.folder_lock import locked
from jaxpipe.run.folder.prepare_run import resume_notice
from jaxpipe.run.quorum.merge_line import merge_line, server_address
from jaxpipe.run.verdict import check_can_run
from jaxpipe.runtime.checkpoint.resume import resumed_state
from jaxpipe.runtime.metrics.records import StepMetrics
from jaxpipe.runtime.open_transport import choose_transport
from jaxpipe.runtime.run_config import ComputeKind, Survival, TransportKind
from jaxpipe.runtime.stage.model import Model
from jaxpipe.runtime.train import Outcome, Stopped, outcome_in
from jaxpipe.runtime.train import train as train_rank
from jaxpipe.runtime.watchdog.of_job import start_watchdog

logger = logging.getLogger(__name__)


def _ignore(_: StepMetrics) -> None:
    """Do nothing with the metrics, which the run's folder keeps in any case."""


def train(
    config: Config,
    *,
    model: Model | None = None,
    resume: bool = False,
    observe: Callable[[StepMetrics], None] = _ignore,
) -> Outcome:
    """Train with one thread for each rank, and return where the results are.

    `observe` is called with the metrics of each step, in the thread of rank 0. A `model` of your
    own takes the place of the one that the section `model` describes; that section still has to
    state its `num_layers`, `sequence`, `vocabulary` and `tied`. Interrupting the call (Ctrl-C, or
    a notebook's stop button) saves a checkpoint after the current step, then raises
    `KeyboardInterrupt`; a second interrupt raises it at once.

    Raises:
        ConfigError: the configuration asks for what only processes can do, or for what
            `jaxpipe train` refuses, too; or the model is not what the section `model` states.
        PlanError: cluster, model and batch do not fit the stages and replicas.
        DataError: the dataset is missing, corrupt or too small.
        CheckpointError: there is no intact checkpoint to resume from.
        RunError: the run failed.
    """
    _check_threads(config)
    if model is not None:
        _check_model(model, config.model)
    with locked(Path(config.run.folder)):
        return _train(config, model=model, resume=resume, observe=observe)


def _train(
    config: Config,
    *,
    model: Model | None,
    resume: bool,
    observe: Callable[[StepMetrics], None],
) -> Outcome:
    """Train in the locked folder."""
    checkpoint = check_run(config, resume=resume)
    if config.quorum.is_on:
        server_address(config.quorum)
    if checkpoint is not None:
        logger.info("%s", resume_notice(checkpoint, config))
        if checkpoint.step >= config.train.steps:
            return outcome_in(Path(config.run.folder), place_of(config))
    plan, cluster = plan_from(config, model=model), cluster_from(config)
    if model is None:  # the memory of another one is not known
        check_can_run(config, plan, cluster, environment=os.environ)
    _check_all_reduce(plan)
    job = job_from(config, plan, model=model)
    watch = start_watchdog(job, rank=0)  # one for the process

    def run_rank(base: Transport) -> Outcome | Stopped | None:
        transport = choose_transport(config.run, plan, cluster, base=base)
        with closing(transport):
            timeout_s = config.run.startup_timeout_s
            saved = resumed_state(job, transport, checkpoint, timeout_s=timeout_s)
            line = merge_line(config, say=logger.info) if transport.rank == 0 else None
            outcome = train_rank(
                replace(job, line=line),
                transport,
                checkpoint=saved,
                observe=observe,
                watch=watch if transport.rank == 0 else None,
            )
        if isinstance(outcome, Stopped):
            logger.warning(
                "stopped on request after step %d/%d: %s; next: the same call with resume=True",
                outcome.step,
                config.train.steps,
                outcome.checkpoint,
            )
        return outcome

    def stop() -> None:
        watch.stop_requested = True

    outcome, *_ = run_ranks(plan.num_ranks, run_rank, on_interrupt=stop)
    assert isinstance(outcome, Outcome), outcome  # only an interrupted run stops early
    return outcome


def _check_threads(config: Config) -> None:
    run = config.run
    wrong = {
        "run.transport": (run.transport, run.transport is TransportKind.NCCL),
        "run.compute": (run.compute, run.compute is ComputeKind.PACED),
        "run.survive": (run.survive, run.survive is Survival.SHRINK),
    }
    for field, (value, is_wrong) in wrong.items():
        if is_wrong:
            raise ConfigError(
                f"threads of one process cannot do this: `{field}` is {value}; leave it out, or "
                "use `jaxpipe train`"
            )


def _check_all_reduce(plan: Plan) -> None:
    if plan.all_reduce.facts.is_native:
        raise ConfigError(
            f"`plan.all_reduce` ({plan.all_reduce}) needs processes, as threads have no library "
            f"that sums; set it to {AllReduceKind.HIERARCHICAL}, or use `jaxpipe train`"
        )


def _check_model(model: Model, stated: ModelConfig) -> None:
    """Check that a model is the one for which the plan and the data were checked."""
    for field in ("num_layers", "sequence", "vocabulary", "tied"):
        actual, expected = getattr(model, field), getattr(stated, field)
        if actual != expected:
            raise ConfigError(
                f"`model.{field}` is {expected}, but the given model has {actual}; set "
                f"`model.{field}` to that"
            )
