"""Checks before a comparison starts: every system must be able to compute the same losses."""

from collections.abc import Sequence
from pathlib import Path

from jaxpipe.baselines.compare.system import SPLITS_BATCH, SPLITS_EXPERTS, Executor
from jaxpipe.baselines.systems import System
from jaxpipe.config import Config, check_run
from jaxpipe.errors import ConfigError
from jaxpipe.models import GptConfig, family_of
from jaxpipe.models.moe.routing import Dispatch
from jaxpipe.plan import Plan
from jaxpipe.runtime.run_config import TransportKind
from jaxpipe.runtime.stage.optimizer_config import Decayed, OptimizerName
from jaxpipe.schedule import Remat

TABLE = "compare.csv"
"""The file that marks the folder of a comparison."""


def check_comparison(
    config: Config,
    plan: Plan,
    systems: Sequence[System],
    *,
    folder: Path,
    executor: Executor = Executor.SPMD,
) -> None:
    """Check that every system can run this configuration with the same losses.

    Raises:
        ConfigError: one cannot, or the folder already has a comparison.
        DataError: the dataset is missing, corrupt or too small.
    """
    if (folder / TABLE).exists():
        raise ConfigError(
            f"`out` must be a folder without a comparison: {folder} has one; choose another"
        )
    check_run(config, resume=False)
    sharded = [system for system in systems if system is not System.PIPELINE]
    if sharded and plan.has_groups:
        raise ConfigError(
            "`plan` must have ranks of one device to compare SPMD systems, which have a rank for "
            "each device"
        )
    # The pipeline supports more configurations than the SPMD steps.
    if sharded:
        _check_same(config)
    if executor is Executor.HOST and System.ALPA in sharded:
        raise ConfigError(
            "`executor` host runs collectives of all ranks, and alpa may choose a mesh of two "
            "axes: leave alpa out of `against`, or use spmd"
        )
    for system in sharded:
        _check_family(system, config)
        _check_divides(system, batch=config.train.batch, num_ranks=plan.num_ranks)
        if system in SPLITS_EXPERTS:
            _check_experts(system, config, num_ranks=plan.num_ranks)


def _check_same(config: Config) -> None:
    model, optimizer = config.model, config.optimizer
    dropout = getattr(model, "dropout", 0.0)  # a family without the field drops nothing
    bottlenecks = list(map(list, getattr(model, "bottlenecks", ())))
    # The sharded step has float32 parameters, no loss scaling and no dropout.
    refused = {
        "model.dropout": (dropout, dropout == 0, "0"),
        "model.bottlenecks": (bottlenecks, not bottlenecks, "[]"),
        "model.param_dtype": (model.param_dtype, model.param_dtype == "float32", "float32"),
        "model.compute_dtype": (
            model.compute_dtype,
            model.compute_dtype != "float16",
            "float32 or bfloat16",
        ),
        "train.remat": (config.train.remat, config.train.remat is not Remat.DOTS, "none or full"),
        "run.transport": (
            config.run.transport,
            config.run.transport is not TransportKind.SHAPED,
            "mpi; for links that are emulated for all systems, `jaxpipe emulate CLUSTER -- jaxpipe "
            "compare ...`",
        ),
        # The layers of the sharded step are not stacked, and masks have no parts.
        "optimizer.name": (optimizer.name, optimizer.name is not OptimizerName.MUON, "another"),
        "optimizer.decayed": (
            optimizer.decayed,
            optimizer.decayed is Decayed.MATRICES,
            Decayed.MATRICES,
        ),
        "data.pack": (config.data.pack, not config.data.pack, "false"),
        "mesh": (config.mesh.num_devices, config.mesh.num_devices == 1, "one device per rank"),
    }
    for field, (value, is_right, choices) in refused.items():
        if not is_right:
            raise ConfigError(
                f"`{field}` must suit all systems of a comparison, and SPMD systems do not support "
                f"{value}; use {choices}"
            )


def _check_family(system: System, config: Config) -> None:
    if system is System.HIDUP and not isinstance(config.model, GptConfig):
        raise ConfigError(
            f"`model.family` must be left out for a GPT, whose layers alone {system} knows, not "
            f"{family_of(config.model).name}; leave out the system, or compare a GPT"
        )


def _check_divides(system: System, *, batch: int, num_ranks: int) -> None:
    # Alpa may choose a mesh that divides, Megatron does not split the batch.
    if system in SPLITS_BATCH and batch % num_ranks:
        raise ConfigError(
            f"`train.batch` must be a multiple of the ranks for {system}, which gives each rank as "
            f"many samples: it is {batch} for {num_ranks} ranks"
        )
    if system is System.HIDUP and batch % (2 * num_ranks):
        raise ConfigError(
            f"`train.batch` must be a multiple of twice the ranks for {system}, which divides each "
            f"rank's samples into halves: it is {batch} for {num_ranks} ranks"
        )


def _check_experts(system: System, config: Config, *, num_ranks: int) -> None:
    model = config.model
    experts = model.experts if isinstance(model, GptConfig) else 0
    if not isinstance(model, GptConfig) or not experts or experts % num_ranks:
        raise ConfigError(
            f"`model.experts` must be a multiple of the ranks for {system}, which gives each rank "
            f"as many experts: it is {experts} for {num_ranks} ranks"
        )
    if model.dispatch is not Dispatch.EINSUM:
        raise ConfigError(
            f"`model.dispatch` must be einsum for {system}, whose slots have fixed places on the "
            f"ranks, not {model.dispatch}"
        )
