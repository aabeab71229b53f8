"""Configurations to plan, from a few words."""

from typing import Any

from jaxpipe.config import Config, cluster_from, config_of_settings
from jaxpipe.propose.query import Query
from jaxpipe.schedule import Remat
from jaxpipe.search import Task
from jaxpipe.simulate import Conditions


def asked(*, cluster: str, model: str = "tiny", batch: int, **sections: dict[str, Any]) -> Config:
    """Return the configuration of a preset on a cluster, changed by sections."""
    settings = [f"model.preset={model}", f"plan.cluster={cluster}", f"train.batch={batch}"]
    for section, fields in sections.items():
        settings += [f"{section}.{name}={value}" for name, value in fields.items()]
    return config_of_settings(settings)


def known(config: Config, remat: Remat = Remat.FULL) -> tuple[Task, Conditions]:
    """Return the task of a search, and its conditions."""
    return Query(config=config, cluster=cluster_from(config)).task(remat)
