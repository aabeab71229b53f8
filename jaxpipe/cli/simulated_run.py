"""The step of a run beside its trace: the plan simulated with the measured compute times."""

import logging
from pathlib import Path

from jaxpipe.config import Config, cluster_from, config_in
from jaxpipe.errors import UserError
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.forecast.compressed_messages import Compressed, measured_compressions
from jaxpipe.run.forecast.simulate_step import simulate_step, sizes_of
from jaxpipe.runtime.metrics.records import METRICS_FILE, StepMetrics, read_summary, stream_metrics
from jaxpipe.topo import with_slower_links, without_network
from jaxpipe.trace import Trace


def simulated_run(run: Path, measured: Trace, *, free_links: bool) -> tuple[Trace, str]:
    """Return the simulated step of a run, and what it assumes.

    Its links are those of the run's cluster, with the scale of emulated ones, or take no time.

    Raises:
        UserError: the metrics of the run hold no configuration.
    """
    config = _config(run)
    cluster = cluster_from(config)
    network = "free links" if free_links else f"the links of {cluster.name}"
    linked = (
        without_network(cluster)
        if free_links
        else with_slower_links(cluster, scale=config.run.link_scale)
    )
    simulated = simulate_step(config, measured=measured, cluster=linked)
    return simulated, f"the plan over {network}, measured compute times"


def compressed_in(run: Path, measured: Trace, *, step: int | None) -> tuple[Compressed, ...]:
    """Return what a run has compressed in the steps of a trace; of a paced run nothing is sent.

    The outer loop is that of all steps, or of one.

    Raises:
        UserError: the metrics of the run hold no configuration.
    """
    if "paced" in read_summary(run / METRICS_FILE, level=logging.DEBUG).truth:
        return ()
    config = _config(run)
    plan, cluster = plan_from(config), cluster_from(config)
    metrics: list[StepMetrics] = [
        row for row in stream_metrics(run / METRICS_FILE) if step in (None, row.step)
    ]
    return measured_compressions(config, plan, sizes_of(config, plan, cluster), measured, metrics)


def _config(run: Path) -> Config:
    metrics = run / METRICS_FILE
    config = (read_summary(metrics, level=logging.DEBUG).description or {}).get("config")
    if not isinstance(config, dict):
        raise UserError(
            f"{metrics} must hold the configuration of the run, and has none; give the folder of "
            f"a run, or {run / 'trace.json'} alone"
        )
    return config_in(run, config)
