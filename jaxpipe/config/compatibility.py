"""Which settings exclude each other: one table, which a run obeys and the documentation prints.

::

    Config ─┬─► check_compatible ─► EXCLUSIONS ─► `a` and `b` exclude each other: why; fix
    Plan  ──┘

A row is about two settings that are right alone. A limit of one field stands beside the field, and
numbers that must divide each other are in `check_mesh` and `check_outer`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxpipe.collective import AllReduceKind, CodecKind
from jaxpipe.config.read import Config
from jaxpipe.errors import ConfigError
from jaxpipe.models import experts_are_by_token
from jaxpipe.models.gpt_config import Attention
from jaxpipe.plan import Plan
from jaxpipe.runtime.run_config import ComputeKind, Survival, TransportKind
from jaxpipe.runtime.stage.optimizer_config import OptimizerName


@dataclass(frozen=True, slots=True)
class Setting:
    """A field with some of its values."""

    field: str
    """Of the configuration, such as `mesh.context`."""
    values: str
    """The values in words, such as `> 1`."""
    shown: Callable[[Config, Plan | None], object]
    """The value of the field; `plan` decides where the configuration leaves it free."""
    is_chosen: Callable[[Config, Plan | None], bool]
    """Whether the field has one of the values; False for a field of the plan without a plan."""

    def __str__(self) -> str:
        return f"`{self.field}` {self.values}"


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Two settings that exclude each other."""

    first: Setting
    second: Setting
    why: str
    fix: str


def check_compatible(config: Config, plan: Plan | None = None) -> None:
    """Check that no two settings exclude each other; without a plan, those of the plan are free.

    Raises:
        ConfigError: two do. It names both fields with their values, the reason and a way out.
    """
    for row in EXCLUSIONS:
        if row.first.is_chosen(config, plan) and row.second.is_chosen(config, plan):
            fields = " and ".join(
                f"`{setting.field}` ({setting.shown(config, plan)})"
                for setting in (row.first, row.second)
            )
            raise ConfigError(f"{fields} exclude each other: {row.why}; {row.fix}")


def _equal(field: str, value: object) -> Setting:
    shown = str(value).lower() if isinstance(value, bool) else value
    return _of_field(field, f"= {shown}", lambda setting: setting == value)


def _differs(field: str, value: object) -> Setting:
    return _of_field(field, f"≠ {value}", lambda setting: setting != value)


def _above(field: str, limit: int) -> Setting:
    return _of_field(field, f"> {limit}", lambda setting: setting is not None and setting > limit)


def _given(field: str) -> Setting:
    return _of_field(field, "given", bool)


def _of_field(field: str, values: str, is_one: Callable[[Any], bool]) -> Setting:
    section, name = field.split(".")

    def value(config: Config) -> object:
        # A family of models may have no such field.
        return getattr(getattr(config, section), name, None)

    return Setting(
        field,
        values,
        shown=lambda config, _: _in_words(value(config)),
        is_chosen=lambda config, _: is_one(value(config)),
    )


def _of_plan(field: str, values: str, is_chosen: Callable[[Plan], bool]) -> Setting:
    """Return a setting that the plan shows, be it configured, searched or read from a file."""
    return Setting(
        f"plan.{field}",
        values,
        shown=lambda _, plan: plan.all_reduce if field == "all_reduce" and plan else values,
        is_chosen=lambda _, plan: plan is not None and is_chosen(plan),
    )


def _in_words(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, tuple) else value


_PACED = _equal("run.compute", ComputeKind.PACED)
_SHRINK = _equal("run.survive", Survival.SHRINK)
_NCCL = _equal("run.transport", TransportKind.NCCL)
_SHAPED = _equal("run.transport", TransportKind.SHAPED)
_TRACKERS = _given("run.trackers")
_ISLANDS = _above("outer.islands", 0)
_SEVERAL_ISLANDS = _above("outer.islands", 1)
_ONE_ISLAND = _equal("outer.islands", 1)
_OUTER_CODEC = _differs("outer.codec", CodecKind.NONE)
_QUORUM = _given("quorum.server")
_EAGER = _equal("outer.eager", True)
_CONTEXT = _above("mesh.context", 1)
_SEQUENCE_PARALLEL = _equal("mesh.sequence_parallel", True)
_MESH = Setting(
    "mesh",
    "of several devices",
    shown=lambda config, _: f"{config.mesh.num_devices} devices",
    is_chosen=lambda config, _: config.mesh.num_devices > 1,
)
_GROUPS = _of_plan("file", "with several devices per rank", lambda plan: plan.has_groups)
_LIBRARY = _of_plan("all_reduce", "= library", lambda plan: plan.all_reduce.facts.is_native)
_NEAR = _of_plan(
    "all_reduce",
    "without far messages",
    lambda plan: not plan.all_reduce.facts.has_far_messages,
)
_UNEQUAL_CUTS = _of_plan("cuts", "unequal", lambda plan: not plan.has_equal_cuts)
_SHARDED = _equal("optimizer.sharded", True)
_ADAFACTOR = _equal("optimizer.name", OptimizerName.ADAFACTOR)
_MUON = _equal("optimizer.name", OptimizerName.MUON)
_GRADIENT_CODEC = _differs("comm.gradients", CodecKind.NONE)
_MASTERS = _equal("optimizer.master_weights", True)
_LORA = _above("lora.rank", 0)
_FROZEN = _given("train.frozen")
_PACK = _equal("data.pack", True)
_FLASH = _equal("model.attention", Attention.FLASH)
_FLOAT32 = _equal("model.compute_dtype", "float32")
_EXPERTS = Setting(
    "model.experts",
    "> 0",
    shown=_above("model.experts", 0).shown,
    # Of a Llama, a token chooses whatever others do.
    is_chosen=lambda config, _: not experts_are_by_token(config.model),
)
_CLASSES = _above("model.classes", 0)
_DROPOUT = _above("model.dropout", 0)
_BOTTLENECKS = _given("model.bottlenecks")
_CAUSAL = _equal("model.causal", True)

_ONE_DEVICE = "a paced run emulates ranks of one device"
_UNCOMPRESSED = "a paced run emulates all-reduces without codecs"
_APART = "each device computes its part of a sequence alone"
_NO_PART = "the projections of a bottleneck are on one device"
_DIVIDED_ONCE = "moments are divided over replicas or over the devices of a rank"

EXCLUSIONS: tuple[Exclusion, ...] = (
    Exclusion(_PACED, _NCCL, "links of a paced run are emulated", "remove `run.transport`"),
    Exclusion(_PACED, _GRADIENT_CODEC, _UNCOMPRESSED, "set `comm.gradients` to none"),
    Exclusion(_PACED, _OUTER_CODEC, _UNCOMPRESSED, "set `outer.codec` to none"),
    Exclusion(
        _PACED,
        _LIBRARY,
        "the messages of a library are not known, and cannot be emulated",
        f"set `plan.all_reduce` to {AllReduceKind.HIERARCHICAL}",
    ),
    Exclusion(_PACED, _MESH, _ONE_DEVICE, "remove the section `mesh`"),
    Exclusion(_PACED, _TRACKERS, "a paced run has no losses to log", "remove `run.trackers`"),
    Exclusion(
        _PACED,
        _SHRINK,
        "a paced run has no state to recover",
        f"set `run.survive` to {Survival.RESTART}",
    ),
    Exclusion(
        _SHRINK,
        _NCCL,
        "survivors continue over plain MPI",
        f"remove `run.transport`, or set `run.survive` to {Survival.RESTART}",
    ),
    Exclusion(
        _SHRINK,
        _SHAPED,
        "survivors continue over plain MPI",
        f"remove `run.transport`, or set `run.survive` to {Survival.RESTART}",
    ),
    Exclusion(
        _ISLANDS,
        _SHRINK,
        "a lost rank leaves its island without a replica of its state",
        f"set `run.survive` to {Survival.RESTART}",
    ),
    Exclusion(
        _ISLANDS,
        _NCCL,
        "islands exchange over MPI",
        f"set `run.transport` to {TransportKind.MPI}",
    ),
    Exclusion(
        _ISLANDS,
        _differs("model.param_dtype", "float32"),
        "outer steps accumulate small differences of parameters",
        "set `model.param_dtype` to float32",
    ),
    Exclusion(
        _ISLANDS,
        _UNEQUAL_CUTS,
        "islands exchange the same stages",
        "set `outer.islands` to 0, or give replicas one cut",
    ),
    Exclusion(
        _QUORUM,
        _ISLANDS,
        "a run is one island of a server",
        "set `outer.islands` to 0",
    ),
    Exclusion(_QUORUM, _PACED, "a paced run learns nothing", "leave out `quorum.server`"),
    Exclusion(
        _QUORUM,
        _SHRINK,
        "survivors do not know what the island has delivered",
        f"set `run.survive` to {Survival.RESTART}",
    ),
    Exclusion(
        _QUORUM,
        _NCCL,
        "ranks of an island gather over MPI",
        f"set `run.transport` to {TransportKind.MPI}",
    ),
    Exclusion(
        _QUORUM,
        _differs("model.param_dtype", "float32"),
        "outer steps accumulate small differences of parameters",
        "set `model.param_dtype` to float32",
    ),
    Exclusion(
        _LIBRARY,
        _SEVERAL_ISLANDS,
        "a library sums over all ranks, not within islands",
        f"set `plan.all_reduce` to {AllReduceKind.HIERARCHICAL}",
    ),
    Exclusion(
        _LIBRARY,
        _SHAPED,
        "only MPI and NCCL have an all-reduce of their own",
        f"set `plan.all_reduce` to {AllReduceKind.HIERARCHICAL}",
    ),
    Exclusion(
        _LIBRARY,
        _UNEQUAL_CUTS,
        "the all-reduces of a library begin in one order on all ranks",
        f"set `plan.all_reduce` to {AllReduceKind.HIERARCHICAL}, or give replicas one cut",
    ),
    Exclusion(
        _CONTEXT,
        _FLASH,
        _APART,
        f'set `model.attention` to "{Attention.PRODUCT}", or `mesh.context` to 1',
    ),
    Exclusion(_CONTEXT, _DROPOUT, _APART, "set `model.dropout` to 0, or `mesh.context` to 1"),
    Exclusion(
        _CONTEXT,
        _EXPERTS,
        "experts share whole sequences",
        "set `model.experts` to 0, or `mesh.context` to 1",
    ),
    Exclusion(
        _CONTEXT, _CLASSES, "the head of classes reads one token alone", "set `mesh.context` to 1"
    ),
    Exclusion(
        _CONTEXT,
        _SEQUENCE_PARALLEL,
        "sequences are divided over `mesh.tensor` or over `mesh.context`",
        "set one of them to its default",
    ),
    Exclusion(_BOTTLENECKS, _MESH, _NO_PART, "remove the section `mesh`"),
    Exclusion(_BOTTLENECKS, _GROUPS, _NO_PART, "plan one device per rank"),
    Exclusion(
        _BOTTLENECKS,
        _UNEQUAL_CUTS,
        "replicas reduce the projections of a bottleneck with the layers beside it",
        "give replicas one cut",
    ),
    Exclusion(
        _BOTTLENECKS,
        _ISLANDS,
        "an outer loop exchanges layers and ends alone",
        "set `outer.islands` to 0, or `model.bottlenecks` to []",
    ),
    Exclusion(
        _BOTTLENECKS,
        _LORA,
        "an adapted model is exported without the projections of a bottleneck",
        "set `lora.rank` to 0, or `model.bottlenecks` to []",
    ),
    Exclusion(
        _BOTTLENECKS,
        _FROZEN,
        "the projections of a bottleneck are trained with all layers beside it",
        "remove `train.frozen`, or set `model.bottlenecks` to []",
    ),
    Exclusion(
        _BOTTLENECKS,
        _PACK,
        "a bottleneck reads the token before, which may be of another document",
        "set `data.pack` to false, or `model.bottlenecks` to []",
    ),
    Exclusion(
        _BOTTLENECKS,
        _PACED,
        "messages of a paced run have one size",
        "set `model.bottlenecks` to []",
    ),
    Exclusion(
        _GROUPS, _MESH, "the plan or the section decides the mesh", "remove the section `mesh`"
    ),
    Exclusion(_GROUPS, _SHARDED, _DIVIDED_ONCE, "set `optimizer.sharded` to false"),
    Exclusion(
        _GROUPS,
        _ADAFACTOR,
        "means of rows and columns are not divided over devices",
        f"set `optimizer.name` to {OptimizerName.ADAMW}, or leave each rank one device",
    ),
    Exclusion(_SHARDED, _MESH, _DIVIDED_ONCE, "remove one of them"),
    Exclusion(
        _SHARDED,
        _ADAFACTOR,
        "a piece of a matrix has no means of its rows and columns",
        "set `optimizer.sharded` to false: the moments are small",
    ),
    Exclusion(
        _SHARDED,
        _MUON,
        "a piece of a matrix cannot be orthogonalised alone",
        f"set `optimizer.sharded` to false, or `optimizer.name` to {OptimizerName.ADAMW}",
    ),
    Exclusion(
        _MESH,
        _ADAFACTOR,
        "means of rows and columns are not divided over devices",
        f"set `optimizer.name` to {OptimizerName.ADAMW}, or leave each rank one device",
    ),
    Exclusion(
        _PACK,
        _FLASH,
        "documents are kept apart by a mask, and the fused kernel takes none",
        "choose another attention, or set `data.pack` to false",
    ),
    Exclusion(
        _PACK,
        _EXPERTS,
        "the balance of experts is a mean over all tokens, padding among them",
        "set `model.experts` to 0, or `data.pack` to false",
    ),
    Exclusion(_PACK, _CLASSES, "a labelled sample is one document", "set `data.pack` to false"),
    Exclusion(
        _EAGER,
        _above("outer.delay", 0),
        "an eager update has all inner steps until the next outer one",
        "set `outer.delay` to 0",
    ),
    Exclusion(
        _EAGER,
        _above("outer.local_fraction", 0),
        "an eager update keeps all inner steps",
        "set `outer.local_fraction` to 0",
    ),
    Exclusion(
        _OUTER_CODEC,
        _ONE_ISLAND,
        "one island sends nothing to others",
        "set `outer.codec` to none",
    ),
    Exclusion(
        _GRADIENT_CODEC,
        _NEAR,
        "a codec of gradients compresses far messages",
        f"set `plan.all_reduce` to {AllReduceKind.HIERARCHICAL}, or `comm.gradients` to "
        f"{CodecKind.NONE}",
    ),
    Exclusion(
        _LORA,
        _FROZEN,
        "with adapters all other parameters are frozen",
        "leave out one of them",
    ),
    Exclusion(
        _CLASSES,
        _CAUSAL,
        "the head reads the first token, which sees no other",
        "set `model.causal` to false",
    ),
    Exclusion(
        _MASTERS,
        _equal("model.param_dtype", "float32"),
        "parameters of float32 need no copies of more bits",
        "leave out the first",
    ),
    Exclusion(
        _FLASH,
        _FLOAT32,
        "the fused kernel computes in 16 bits",
        "set `model.compute_dtype` to bfloat16, or choose another attention",
    ),
)
"""Checked in this order; the first that applies is reported."""
