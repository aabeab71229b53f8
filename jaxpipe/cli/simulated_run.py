"""The step of a run beside its trace: the plan simulated with the measured compute times."""

import logging
from pathlib import Path

from jaxpipe.config import Config, cluster_from, config_in
from jaxpipe.errors import UserError
from jaxpipe.run.forecast.simulate_step import simulate_step
from jaxpipe.runtime.metrics.records import read_summary
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


def _config(run: Path) -> Config:
    metrics = run / "metrics.jsonl"
    config = (read_summary(metrics, level=logging.DEBUG).description or {}).get("config")
    if not isinstance(config, dict):
        raise UserError(
            f"{metrics} must hold the configuration of the run, and has none; give the folder of "
            f"a run, or {run / 'trace.json'} alone"
        )
    return config_in(run, config)
