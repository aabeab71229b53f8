"""The verdict before a run is that of its ranks, for configurations at random.

What passes the check trains, and every refusal is the user's: it leads with a field. `make deep`
tries 2,000 configurations and trains 150.
"""

import os
import re
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import fields
from itertools import count, product
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import jax
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from jaxpipe.comm import run_ranks
from jaxpipe.config import (
    Config,
    check_here,
    cluster_from,
    compatibility,
    config_from,
    job_from,
    resolve,
)
from jaxpipe.errors import ConfigError, UserError
from jaxpipe.models.catalogue import FAMILIES
from jaxpipe.paced import planned_all_reduces, planned_outer
from jaxpipe.plan import Plan
from jaxpipe.propose import resolve as propose_resolve
from jaxpipe.propose.conditions import conditions_of
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run import verdict
from jaxpipe.run.folder.prepare_run import prepare
from jaxpipe.run.rank import threads
from jaxpipe.run.verdict import check_can_run
from jaxpipe.runtime.run_config import ComputeKind, Survival, TransportKind
from jaxpipe.runtime.stage.compile import compile_stage
from jaxpipe.runtime.step import worker
from jaxpipe.runtime.step.batch import eval_step_batch, train_step_batch
from jaxpipe.runtime.step.worker import boundary_codecs, gradient_wire
from jaxpipe.runtime.train import train
from jaxpipe.simulate import plan_step
from jaxpipe.topo import Cluster
from tests.run.random_settings import (
    ABSURD,
    FIXED,
    KINDS,
    NAMES,
    RIGHT,
    WRONG,
    Bases,
    random_settings,
    tree_of,
)
from tests.runtime.compiled_once import compile_stage_once
from tests.runtime.training import Tree

MOST_RANKS = 8
"""Of a plan that is executed here."""
LEADS = re.compile(r"(?:unknown key )?`([\w.]+)(?:\[\d+\])*`")
BESIDE = ("memory_gib", "model.preset", "data.source")
"""Names that are no field of the configuration: of a cluster file, of a preset, unknown ones."""

Fields = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    return Bases.in_folder(tmp_path_factory.mktemp("bases"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return (folder / str(number) for number in count())


def field_names() -> set[str]:
    """Return all fields of the configuration, with their sections."""
    sections: dict[str, tuple[Any, ...]] = {
        section.name: KINDS if section.name == "model" else (section.type,)
        for section in fields(Config)
    }
    return {
        f"{name}.{field.name}"
        for name, types in sections.items()
        for section in types
        for field in fields(section)
    }


def test_all_fields_are_drawn() -> None:
    assert (set(RIGHT) | set(WRONG) | set(FIXED)) - set(BESIDE) == field_names()
    assert {family.config for family in FAMILIES} == set(KINDS)


def checked(tree: Tree) -> tuple[Config, Plan, Cluster]:
    """Return what has passed all checks that come before any process starts."""
    config = config_from(tree)
    cluster = cluster_from(config)
    plan = plan_from(config, cluster)
    check_can_run(config, plan, cluster, environment=os.environ)
    check_here(config, plan, os.environ)
    return config, plan, cluster


def test_a_paced_run_needs_the_speed_of_each_device(bases: Bases, folders: Iterator[Path]) -> None:
    tree = tree_of(bases, "text", {"run.compute": "paced"}, folder=next(folders))
    with pytest.raises(ConfigError, match=r"^`paced\.tflops` must be set: device 'here-0:0' of"):
        prepare(config_from(tree), resume=False)
    tree["paced"] = {"tflops": 1.0}
    prepare(config_from(tree), resume=False)


def check_verdict(bases: Bases, drawn: Fields, folder: Path) -> None:
    """Check a configuration; a refusal is one of the user, and leads with a field."""
    try:
        checked(tree_of(bases, *drawn, folder=folder))
    except UserError as error:
        words = str(error)
        lead = LEADS.match(words)
        assert lead is not None, words
        names = field_names() | set(BESIDE)
        assert any(name.startswith(lead[1]) for name in names), words
        assert "num_microbatches" not in words
        assert "num_chunks" not in words


@settings(max_examples=200)
@given(
    name=st.sampled_from(NAMES),
    field=st.sampled_from(sorted(field_names() - {"run.folder"})),
    value=st.sampled_from(ABSURD),
)
def test_absurd_values_are_refused_by_their_field_or_obeyed(
    bases: Bases, folders: Iterator[Path], name: str, field: str, value: Any
) -> None:
    check_verdict(bases, (name, {field: value}), next(folders))


@pytest.mark.deep
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", NAMES)
def test_all_absurd_values_are_refused_by_their_field_or_obeyed(
    bases: Bases, folders: Iterator[Path], name: str
) -> None:
    for field, value in product(sorted(field_names() - {"run.folder"}), ABSURD):
        check_verdict(bases, (name, {field: value}), next(folders))


@settings(max_examples=300)
@given(drawn=random_settings())
def test_a_verdict_is_a_refusal_of_the_user_or_none(
    bases: Bases, folders: Iterator[Path], drawn: Fields
) -> None:
    check_verdict(bases, drawn, next(folders))


@pytest.mark.deep
@pytest.mark.timeout(3000)
@settings(max_examples=2000)
@given(drawn=random_settings())
def test_many_verdicts_are_refusals_of_the_user_or_none(
    bases: Bases, folders: Iterator[Path], drawn: Fields
) -> None:
    check_verdict(bases, drawn, next(folders))


def shapes_alone(compiler: Any, name: str, function: Any, *arguments: Any, **_: Any) -> Any:
    """Return the shapes of the results of a function, without compiling it."""
    compiler.under_way[name] = Future()
    compiler.under_way[name].set_result(None)
    return jax.eval_shape(function, *arguments)


def be_paced(config: Config, plan: Plan, cluster: Cluster) -> None:
    """Do all that ranks of a paced run do before their first step."""
    conditions = conditions_of(config, cluster, remat=plan.remat)
    plan_step(plan, conditions)
    if config.outer.is_on:
        planned_outer(plan, conditions, config.outer, num_steps=config.train.steps)
    else:
        planned_all_reduces(plan, conditions)


def be_each_rank(config: Config, plan: Plan, cluster: Cluster) -> None:
    """Do all that ranks do before their first step: samples, codecs, programs, traced stages."""
    if config.run.compute is ComputeKind.PACED:
        be_paced(config, plan, cluster)
        return
    job = job_from(config, plan, cluster=cluster)
    gradient_wire(job.comm)
    stages = set()
    for rank in range(plan.num_ranks):
        train_step_batch(job, rank=rank, step=0)
        eval_step_batch(job, rank=rank, index=0)
        boundary_codecs(job.comm, plan, rank=rank)
        replica, number = plan.replica(rank), plan.number(rank)
        schedule = plan.train_schedule(replica=replica, sharded=job.optimizer.sharded)
        for stage in plan.stages(rank):
            functions = job.functions(stage=stage, rank=rank)
            ops = frozenset(i.op for i in schedule[number] if i.stage == stage)
            shape = (stage, plan.pipeline(rank).cut, functions.work, ops)
            if shape not in stages:
                stages.add(shape)
                with patch("jaxpipe.runtime.stage.compile.Compiler.add", shapes_alone):
                    compile_stage(functions, ops=ops)


@pytest.mark.slow
@settings(max_examples=10)
@given(drawn=random_settings())
def test_what_passes_the_check_is_not_refused_by_ranks(
    bases: Bases, folders: Iterator[Path], drawn: Fields
) -> None:
    try:
        config, plan, cluster = checked(tree_of(bases, *drawn, folder=next(folders)))
    except UserError:
        return
    be_each_rank(config, plan, cluster)


def needs_processes(config: Config, plan: Plan) -> bool:
    """Return whether threads of one process cannot be the ranks of a run."""
    run = config.run
    return (
        run.compute is ComputeKind.PACED
        or run.transport is TransportKind.NCCL
        or run.survive is Survival.SHRINK
        or plan.all_reduce.facts.is_native
        or plan.num_ranks > MOST_RANKS
    )


def check_training(bases: Bases, drawn: Fields, folder: Path) -> None:
    """Train what passes the check: its ranks refuse nothing, and end."""
    tree = tree_of(bases, *drawn, folder=folder)
    tree["train"].update(steps=2)
    if "folder" in tree["checkpoint"]:
        tree["checkpoint"]["folder"] += f"/{folder.name}"
    tree["run"].update(timeout_s=60.0, hang_s=60.0, pictures=False, trackers=[])
    try:
        prepared = prepare(config_from(tree), resume=False)
    except UserError:
        return
    config, plan = prepared.config, prepared.plan
    if needs_processes(config, plan):
        return
    with (
        patch.object(worker, "compile_stage", compile_stage_once),
        patch.object(threads, "plan_from", lambda *_, **__: plan),  # another search may differ
    ):
        assert threads.train(config).metrics.exists()


@pytest.mark.slow
@settings(max_examples=2)
@given(drawn=random_settings())
def test_what_passes_the_check_trains(bases: Bases, folders: Iterator[Path], drawn: Fields) -> None:
    check_training(bases, drawn, next(folders))


@pytest.mark.deep
@pytest.mark.timeout(3000)
@settings(max_examples=150)
@given(drawn=random_settings())
def test_much_that_passes_the_check_trains(
    bases: Bases, folders: Iterator[Path], drawn: Fields
) -> None:
    check_training(bases, drawn, next(folders))


OF_PRINCIPLE = {
    "exclude each other": "`experiments/verify_bugs/bypassed.py` has each row of the table",
    "must be at least that of": "jax reads ids beyond the table as the last one",
    "a run ends with an outer step": "the islands of the last steps would never meet",
    "the positions of the model": "positions beyond those of the model are read as the last",
    "must have inputs of the shape": "costs and memory count the tokens of `train.sequence`",
    "where inputs are pictures": "ranks take pictures as they are: a sequence would change nothing",
    "memory_gib": "the ranks of a test have more memory than their cluster states",
}
"""Words of refusals of what ranks would compute, each with the reason why it is refused."""


@contextmanager
def unchecked() -> Iterator[None]:
    """Let all pass that comes between a configuration in itself and its ranks."""
    nothing = MagicMock()
    with (
        patch.object(compatibility, "EXCLUSIONS", ()),
        patch.multiple(resolve, check_settings=nothing, check_mesh_fits=nothing),
        patch.multiple(resolve, check_outer=nothing),
        patch.object(propose_resolve, "check_settings", nothing),
        patch.multiple(verdict, check_memory=nothing, check_prepared_data=nothing),
    ):
        yield


def check_converse(bases: Bases, drawn: Fields, folder: Path) -> None:
    """Bypass a refusal: what is refused fails on its ranks, too, or is refused on principle."""
    tree = tree_of(bases, *drawn, folder=folder)
    tree["train"].update(steps=2)
    tree["run"].update(timeout_s=60.0, hang_s=60.0, pictures=False, trackers=[])
    try:
        config = config_from(tree)
        cluster = cluster_from(config)
        with unchecked():
            plan = plan_from(config, cluster)
    except Exception:  # there is nothing that ranks could compute
        return
    try:
        checked(tree)
    except UserError as error:
        refusal = str(error)
    else:
        return
    if any(words in refusal for words in OF_PRINCIPLE) or needs_processes(config, plan):
        return
    note(refusal)

    def be_ranks() -> None:
        be_each_rank(config, plan, cluster)
        job = job_from(config, plan, cluster=cluster)
        with patch.object(worker, "compile_stage", compile_stage_once):
            run_ranks(
                plan.num_ranks,
                lambda transport: train(job, transport, checkpoint=None, observe=lambda _: None),
            )

    with unchecked(), pytest.raises(Exception):  # noqa: B017,PT011  whatever a rank raises
        be_ranks()


@pytest.mark.slow
@settings(max_examples=6)
@given(drawn=random_settings())
def test_what_is_refused_fails_on_ranks(
    bases: Bases, folders: Iterator[Path], drawn: Fields
) -> None:
    check_converse(bases, drawn, next(folders))


@pytest.mark.deep
@pytest.mark.timeout(3000)
@settings(max_examples=300)
@given(drawn=random_settings())
def test_much_that_is_refused_fails_on_ranks(
    bases: Bases, folders: Iterator[Path], drawn: Fields
) -> None:
    check_converse(bases, drawn, next(folders))
