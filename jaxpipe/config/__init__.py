"""The configuration: one TOML file, checked whole before any work starts."""

from jaxpipe.config.build import cluster_from, describe, job_from, model_from, plan_from
from jaxpipe.config.check import check_paced, check_run
from jaxpipe.config.read import Config, choices_of, config_from, load_config, to_tree

__all__ = [
    "Config",
    "check_paced",
    "check_run",
    "choices_of",
    "cluster_from",
    "config_from",
    "describe",
    "job_from",
    "load_config",
    "model_from",
    "plan_from",
    "to_tree",
]
