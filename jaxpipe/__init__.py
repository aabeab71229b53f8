"""Pipeline- and data-parallel training in JAX on heterogeneous, far-apart devices.

The names below are imported when they are first used, so `import jaxpipe` takes no time, and only
`train` and `run_ranks` import jax.

>>> import jaxpipe
>>> cluster = jaxpipe.load_cluster("two-region")
>>> len(cluster)
4
"""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxpipe.comm import run_ranks
    from jaxpipe.config import Config, config_from, load_config
    from jaxpipe.errors import ConfigError, JaxpipeError, PlanError, RunError, UserError
    from jaxpipe.plan import Plan, draw_plan, read_plan
    from jaxpipe.propose.resolve import plan_from
    from jaxpipe.run.forecast.simulate_step import simulate_step
    from jaxpipe.run.rank.threads import train
    from jaxpipe.topo import Cluster
    from jaxpipe.topo import load as load_cluster
    from jaxpipe.trace import Trace, read_chrome

    __version__: str

__all__ = [
    "Cluster",
    "Config",
    "ConfigError",
    "JaxpipeError",
    "Plan",
    "PlanError",
    "RunError",
    "Trace",
    "UserError",
    "__version__",
    "config_from",
    "draw_plan",
    "load_cluster",
    "load_config",
    "plan_from",
    "read_chrome",
    "read_plan",
    "run_ranks",
    "simulate_step",
    "train",
]

# No name here may be that of a subpackage: importing `jaxpipe.plan` anywhere sets the attribute
# `plan` of this module to the package. Hence `plan_from` and `simulate_step`.
_HOMES = MappingProxyType(
    {
        "Cluster": "jaxpipe.topo:Cluster",
        "Config": "jaxpipe.config:Config",
        "ConfigError": "jaxpipe.errors:ConfigError",
        "JaxpipeError": "jaxpipe.errors:JaxpipeError",
        "Plan": "jaxpipe.plan:Plan",
        "PlanError": "jaxpipe.errors:PlanError",
        "RunError": "jaxpipe.errors:RunError",
        "Trace": "jaxpipe.trace:Trace",
        "UserError": "jaxpipe.errors:UserError",
        "config_from": "jaxpipe.config:config_from",
        "draw_plan": "jaxpipe.plan:draw_plan",
        "load_cluster": "jaxpipe.topo:load",
        "load_config": "jaxpipe.config:load_config",
        "plan_from": "jaxpipe.propose.resolve:plan_from",
        "read_chrome": "jaxpipe.trace:read_chrome",
        "read_plan": "jaxpipe.plan:read_plan",
        "run_ranks": "jaxpipe.comm:run_ranks",
        "simulate_step": "jaxpipe.run.forecast.simulate_step:simulate_step",
        "train": "jaxpipe.run.rank.threads:train",
    }
)


if not TYPE_CHECKING:  # type checkers would take it to offer any name

    def __getattr__(name: str) -> Any:
        """Import a public name from its home when it is first used."""
        if name == "__version__":
            from jaxpipe.installed import (
                version_of,
            )  # takes longer than all the rest of this module

            return version_of("jaxpipe")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = _HOMES[name].partition(":")
        return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    """Return the public names, which are imported on use."""
    return sorted(__all__)
