"""Run what the duplex search found: its forms as the sharding of a traced step.

The search knows operators and labels, the traced step equations and dims. A model connects them by
names (`ModelNames`): `jax.named_scope`s around its operators, and the labels of its parameters.
"""

from jaxpipe.baselines.autoshard.duplex_step.dim_classes import DimClasses
from jaxpipe.baselines.autoshard.duplex_step.operator_names import ModelNames, ParameterLabels
from jaxpipe.baselines.autoshard.duplex_step.realize import realized

__all__ = ["DimClasses", "ModelNames", "ParameterLabels", "realized"]
