"""Runs of four ranks and four steps, for settings with which a certificate does not compute.

Ranks are threads where threads can be ranks, else the processes that `jaxpipe train` starts. Two
things that need a library have a stand-in among threads, which the outcome names: NCCL is the fake
of the tests, as strict about order, sizes and threads; the all-reduce of MPI is a sum of messages,
with the order of calls that a library wants. Neither shows that the library works.

A setting that moves or watches the same numbers must not change the losses: they are compared, bit
for bit, with those of a run without it. A library adds in an order of its own, and its stand-in in
another one: their losses are compared within the rounding of float32.
"""

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import numpy as np

from jaxpipe.comm import OUTER_TAG, Transport, all_reduce, run_ranks
from jaxpipe.comm.local import LocalTransport
from jaxpipe.comm.nccl import NcclTransport
from jaxpipe.config import Config, check_here, cluster_from, to_tree
from jaxpipe.errors import ConfigError, JaxpipeError
from jaxpipe.models.gpt_config import Attention
from jaxpipe.plan import Plan, PlanConfig, write_plan
from jaxpipe.run.hosts.join_words import write_join_file
from jaxpipe.run.quorum.merge_line import MERGE_FILE
from jaxpipe.run.rank import threads
from jaxpipe.run.rank.paced import run_paced
from jaxpipe.run.verdict import check_can_run
from jaxpipe.runtime.data import Labelled, prepare_labelled
from jaxpipe.runtime.metrics.records import last_step, read_metrics
from jaxpipe.runtime.process.quick_compiles import quick_flags
from jaxpipe.runtime.run_config import ComputeKind, Survival, TransportKind
from jaxpipe.runtime.stage.compile_once import CompileOnce
from jaxpipe.runtime.step import worker
from jaxpipe.topo.toml_text import toml_text
from tests.comm.nccl.fake import FakeBinding, World
from tests.config.chosen_settings import EXAMPLES, SETTINGS, checked
from tests.run.quorum.islands import serving
from tests.runtime.training import write_dataset

TRAINED, SAME, WAITED, NOT_HERE = "trained", "trained, same losses", "paced", "needs a GPU"
FAKE_NCCL, STAND_IN = "fake NCCL", "in-process library"
MOST_S = 300.0
"""Of a run."""
_OF_ANOTHER_ORDER = 1e-6
"""Relative difference of losses, after four steps, of sums in float32 in other orders."""
_LIBRARY_TAG = OUTER_TAG - 1
"""Of all sums of the library, which has no tags: the last of all-reduces."""

_KEEP_NUMBERS = (
    "`run.transport` = shaped",
    "`run.transport` = nccl",  # of processes without a GPU it is MPI
    "`run.trackers` given",
    "`run.survive` = shrink",
)


class RunError(JaxpipeError):
    """A run that should train has failed, or has other losses than one without a setting."""


def train_pair(folder: Path, *settings: str, compiler: CompileOnce) -> str:
    """Train with two settings; return the outcome. Threads compile with the `compiler`.

    Raises:
        RunError: the run fails, or has other losses than without a setting that keeps them.
    """
    config, plan = config_and_plan(folder, settings)
    is_paced = config.run.compute is ComputeKind.PACED
    if getattr(config.model, "attention", None) is Attention.FLASH and not is_paced:
        return _needs_gpu(config, plan)
    losses = _losses_of(folder, settings, compiler)
    if is_paced:
        return WAITED
    others = tuple(name for name in settings if name not in _KEEP_NUMBERS)
    words = ", ".join(_stand_ins(config, plan))
    if len(others) == len(settings):
        return ", ".join(filter(None, (TRAINED, words)))
    expected = _losses_of(folder, others, compiler)
    tolerance = _OF_ANOTHER_ORDER if plan.all_reduce.facts.is_native else 0.0
    if not np.allclose(losses, expected, rtol=tolerance, atol=0.0):
        raise RunError(f"losses {losses} with {', '.join(settings)}, and {expected} without")
    return ", ".join(filter(None, (SAME, words)))


def _needs_gpu(config: Config, plan: Plan) -> str:
    try:
        check_here(config, plan, os.environ)
    except ConfigError as error:
        if "needs an NVIDIA GPU" in str(error):
            return NOT_HERE
        raise RunError(f"refused: {error}") from error
    raise RunError("accepted without a GPU")


def _losses_of(folder: Path, settings: tuple[str, ...], compiler: CompileOnce) -> tuple[float, ...]:
    """Return the losses of a run with some settings, one a step; none of a paced run.

    Raises:
        RunError: it fails, or has not all steps.
    """
    config, plan = config_and_plan(folder, settings)
    return _losses(folder, config, plan, compiler)


@cache  # of a setting that is the default, the run is that of the other one
def _losses(folder: Path, config: Config, plan: Plan, compiler: CompileOnce) -> tuple[float, ...]:
    run = Path(config.run.folder)
    shutil.rmtree(run, ignore_errors=True)
    try:
        if config.run.compute is ComputeKind.PACED:
            pace(config, plan)
        elif _needs_processes(config, plan):
            _train_processes(config, folder)
        else:
            _train_threads(config, plan, compiler)
        metrics = run / "metrics.jsonl"
        if config.run.compute is ComputeKind.PACED:
            losses, num_steps = (), last_step(metrics)
        else:
            losses = tuple(step.loss for step in read_metrics(metrics))
            num_steps = len(losses)
    except Exception as error:
        raise RunError(f"{type(error).__name__}: {error}") from error
    finally:
        shutil.rmtree(run, ignore_errors=True)
    if num_steps != config.train.steps or not all(map(math.isfinite, losses)):
        raise RunError(f"{num_steps} steps of {config.train.steps}, losses {losses}")
    return losses


def config_and_plan(folder: Path, settings: tuple[str, ...]) -> tuple[Config, Plan]:
    """Return a configuration of a run in a folder, whose plan is in a file beside."""
    is_labelled = any(SETTINGS[name].field == "model.classes" for name in settings)
    dataset = _dataset(folder, is_labelled=is_labelled)
    examples = [EXAMPLES[name] for name in settings]
    config, plan = checked(*examples, run=folder.resolve() / "run", dataset=dataset)
    file = folder.resolve() / "plan.toml"
    write_plan(plan, cluster_from(config), file)
    section = PlanConfig(file=str(file), cluster=config.plan.cluster)
    return replace(config, plan=section), plan


@cache
def _dataset(folder: Path, *, is_labelled: bool) -> Path:
    """Prepare a small text, or labelled ones."""
    parent = folder.resolve() / ("labels" if is_labelled else "text")
    shutil.rmtree(parent, ignore_errors=True)
    parent.mkdir(parents=True)
    if not is_labelled:
        return write_dataset(parent)
    random = np.random.default_rng(0)
    samples = Labelled(
        inputs=random.integers(0, 256, (80, 16)).astype(np.uint8),
        labels=(np.arange(80) % 2).astype(np.uint8),
        classes=("even", "odd"),
        source="random numbers",
    )
    prepare_labelled(samples, parent / "dataset", eval_fraction=0.5)
    return parent / "dataset"


def _needs_processes(config: Config, plan: Plan) -> bool:
    """Return whether threads of one process cannot be the ranks of a run."""
    is_nccl = config.run.transport is TransportKind.NCCL
    is_native = is_nccl or plan.all_reduce.facts.is_native
    return config.run.survive is Survival.SHRINK or (
        is_native and not tuple(_stand_ins(config, plan))
    )


def _stand_ins(config: Config, plan: Plan) -> Iterator[str]:
    """Yield what threads have in place of a library; nothing where processes are the ranks.

    The fake copies the memory of one device.
    """
    has_mesh = plan.has_groups or config.mesh.num_devices > 1
    is_nccl = config.run.transport is TransportKind.NCCL
    if config.run.survive is Survival.SHRINK or (is_nccl and has_mesh):
        return
    if is_nccl:
        yield FAKE_NCCL
    if plan.all_reduce.facts.is_native:
        yield STAND_IN


def _train_threads(config: Config, plan: Plan, compiler: CompileOnce) -> None:
    stand_ins = tuple(_stand_ins(config, plan))
    with ExitStack() as stack:
        stack.enter_context(patch.object(worker, "compile_stage", compiler))
        if FAKE_NCCL in stand_ins:
            binding = FakeBinding(World())
            config = replace(config, run=replace(config.run, transport=TransportKind.MPI))

            def over_nccl(*_: object, base: Transport) -> Transport:
                return NcclTransport(base, binding)

            stack.enter_context(patch.object(threads, "choose_transport", over_nccl))
        if STAND_IN in stand_ins:
            stack.enter_context(
                patch.object(LocalTransport, "native_all_reduce", _summed, create=True)
            )
            stack.enter_context(patch.object(threads, "_check_all_reduce", lambda _: None))
        if config.quorum.is_on:  # the only island, so that it trains as one device does
            served = stack.enter_context(serving(config.quorum, versions=version("jaxpipe")))
            file = write_join_file(Path(config.run.folder).parent, served.address, name=MERGE_FILE)
            config = replace(config, quorum=replace(config.quorum, server=str(file)))
        threads.train(config)


def _summed(
    transport: Transport, array: np.ndarray, *, members: tuple[int, ...], timeout_s: float
) -> np.ndarray:
    """All-reduce in place, as a library does: calls match by their order alone."""
    array[...] = all_reduce(transport, array, members, tag=_LIBRARY_TAG, timeout_s=timeout_s)
    return array


def pace(config: Config, plan: Plan) -> None:
    """Execute the steps of a paced run; its ranks know each other by sockets, as threads, too."""
    check_can_run(config, plan, cluster_from(config), environment=os.environ)
    Path(config.run.folder).mkdir(parents=True)
    with redirect_stdout(StringIO()):
        run_ranks(
            plan.num_ranks,
            lambda transport: run_paced(config, plan, transport, say=lambda _: None),
        )


def _train_processes(config: Config, folder: Path) -> None:
    file = folder.resolve() / "config.toml"
    tree = {name: _without_none(section) for name, section in to_tree(config).items()}
    file.write_text(toml_text(tree), encoding="utf-8")
    command = [sys.executable, "-P", "-m", "jaxpipe", "train", str(file)]
    flags = {"XLA_FLAGS": quick_flags("", num_devices=2), "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    done = subprocess.run(
        command,
        env=os.environ | flags,
        check=False,
        timeout=MOST_S,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        raise RunError(f"exit code {done.returncode}: {done.stdout[-2000:]}")


def _without_none(section: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in section.items() if value is not None}
