"""The table of systems of the literature: their papers, and the commands that run them here.

`simulate` stands for `jaxpipe published simulate`, `plan` for `jaxpipe published plan`, `execute`
for `jaxpipe compare`; `predict` is the cost model of the duplex search, which has no command.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from jaxpipe.errors import ConfigError


class System(StrEnum):
    """A training system; `SYSTEMS` has the facts of each."""

    PIPELINE = "pipeline"
    JAXPIPE = "jaxpipe"
    ALPA = "alpa"
    MEGATRON = "megatron"
    MEGATRON_P8 = "megatron-p8"
    MEGATRON_P8_UNSCHEDULED = "megatron-p8-unscheduled"
    MEGATRON_T8 = "megatron-t8"
    MEGATRON_P4T2 = "megatron-p4t2"
    MEGATRON_P2T4 = "megatron-p2t4"
    PYTORCH_PIPE = "pytorch-pipe"
    ZERO3 = "zero3"
    DDP = "ddp"
    HOROVOD = "horovod"
    GSHARD = "gshard"
    DEEPSPEED_MOE = "deepspeed-moe"
    FASTMOE = "fastmoe"
    HIDUP = "hidup"
    DUPLEX = "duplex"
    DTFM = "dtfm"
    DTFM_UNSCHEDULED = "dtfm-unscheduled"
    DTFM_FAIR = "dtfm-fair"


class Way(StrEnum):
    """A way to see a system; see the module."""

    SIMULATE = "simulate"
    PLAN = "plan"
    EXECUTE = "execute"
    PREDICT = "predict"


COMMANDS: Final[Mapping[Way, str]] = MappingProxyType(
    {
        Way.SIMULATE: "jaxpipe published simulate --system",
        Way.PLAN: "jaxpipe published plan",
        Way.EXECUTE: "jaxpipe compare CONFIG --against",
    }
)
"""The command of each way, before the name of the system."""


@dataclass(frozen=True, slots=True)
class SystemFacts:
    """What a system does, the paper that describes it, and the ways in which it is here."""

    about: str
    paper: str
    ways: frozenset[Way]


def _facts(about: str, paper: str, *ways: Way) -> SystemFacts:
    return SystemFacts(about, paper, frozenset(ways))


_DTFM = "Yuan et al. 2022, arXiv:2206.01288"
_MEGATRON = "Narayanan et al. 2021, arXiv:2104.04473"
_HIDUP = "Zhang et al. 2022, SoCC"
_SIMULATE, _PLAN, _EXECUTE, _PREDICT = Way

SYSTEMS: Final[Mapping[System, SystemFacts]] = MappingProxyType(
    {
        System.PIPELINE: _facts("the plan of a configuration", "", _EXECUTE),
        System.JAXPIPE: _facts("a plan of jaxpipe for the runs of DT-FM", "", _SIMULATE),
        System.ALPA: _facts(
            "the strategy or the stages that Alpa's search finds",
            "Zheng et al. 2022, arXiv:2201.12023",
            _PLAN,
            _EXECUTE,
        ),
        System.MEGATRON: _facts(
            "tensor parallelism over all ranks", "Shoeybi et al. 2019, arXiv:1909.08053", _EXECUTE
        ),
        System.MEGATRON_P8: _facts("a pipeline of 8 stages", _MEGATRON, _SIMULATE, _PLAN),
        System.MEGATRON_P8_UNSCHEDULED: _facts(
            "a pipeline of 8 stages, on devices at random", _MEGATRON, _SIMULATE
        ),
        System.MEGATRON_T8: _facts(
            "tensor parallelism over 8 devices", _MEGATRON, _SIMULATE, _PLAN
        ),
        System.MEGATRON_P4T2: _facts("4 stages of 2 devices", _MEGATRON, _SIMULATE, _PLAN),
        System.MEGATRON_P2T4: _facts("2 stages of 4 devices", _MEGATRON, _SIMULATE, _PLAN),
        System.PYTORCH_PIPE: _facts(
            "a pipeline of 8 stages under GPipe", "Kim et al. 2020, arXiv:2004.09910", _SIMULATE
        ),
        System.ZERO3: _facts(
            "batch, parameters, gradients and moments sharded over all ranks",
            "Rajbhandari et al. 2020, arXiv:1910.02054",
            *Way,
        ),
        System.DDP: _facts(
            "the batch sharded over all ranks, gradients in buckets of 25 MiB",
            "Li et al. 2020, arXiv:2006.15704",
            _EXECUTE,
            _PREDICT,
        ),
        System.HOROVOD: _facts(
            "the batch sharded over all ranks, gradients in buckets of 64 MiB",
            "Sergeev and Del Balso 2018, arXiv:1802.05799",
            _EXECUTE,
            _PREDICT,
        ),
        System.GSHARD: _facts(
            "experts over the ranks, routed by sequence",
            "Lepikhin et al. 2020, arXiv:2006.16668",
            _EXECUTE,
            _PREDICT,
        ),
        System.DEEPSPEED_MOE: _facts(
            "experts over the ranks; the tokens of a rank share slots",
            "Rajbhandari et al. 2022, arXiv:2201.05596",
            _EXECUTE,
            _PREDICT,
        ),
        System.FASTMOE: _facts(
            "experts over the ranks, without a capacity",
            "He et al. 2021, arXiv:2103.13262",
            _EXECUTE,
            _PREDICT,
        ),
        System.HIDUP: _facts(
            "the strategy of the duplex search, whose two halves overlap",
            _HIDUP,
            _EXECUTE,
            _PREDICT,
        ),
        System.DUPLEX: _facts(
            "the same, whose halves overlap in the backward, too",
            _HIDUP,
            _PREDICT,
        ),
        System.DTFM: _facts(
            "pipelines of 8 stages inside islands, placed by its scheduler",
            _DTFM,
            _SIMULATE,
            _PLAN,
        ),
        System.DTFM_UNSCHEDULED: _facts("the same on devices at random", _DTFM, _SIMULATE, _PLAN),
        System.DTFM_FAIR: _facts("the same on hosts at random", _DTFM, _SIMULATE),
    }
)


def systems_with(way: Way) -> tuple[System, ...]:
    """Return the systems that can be seen in a way.

    >>> [system.value for system in systems_with(Way.PLAN)][:2]
    ['alpa', 'megatron-p8']
    """
    return tuple(system for system, facts in SYSTEMS.items() if way in facts.ways)


def system_named(
    name: str, way: Way, *, field: str, besides: frozenset[System] = frozenset()
) -> System:
    """Return the system of a name that can be seen in a way; not one of `besides`.

    Raises:
        ConfigError: there is none; `field` has named it.
    """
    choices = [system.value for system in systems_with(way) if system not in besides]
    if name not in choices:
        nearest = difflib.get_close_matches(name, choices, n=1, cutoff=0)[0]
        raise ConfigError(
            f"`{field}` must be one of {', '.join(choices)}, not {name!r}; did you mean {nearest}?"
        )
    return System(name)
