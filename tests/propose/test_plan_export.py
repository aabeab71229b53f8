"""Plans in the files of other systems: each is read back as that system reads it."""

import json
import re
import shlex
from dataclasses import replace
from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe import topo
from jaxpipe.collective import CodecKind
from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan, PlanConfig, Sharing, default_plan
from jaxpipe.propose.options import TrainingSystem
from jaxpipe.propose.plan_export import export_plan
from jaxpipe.schedule import ScheduleKind, parse_schedule
from jaxpipe.schedule.remat import Remat
from tests.plan.test_groups import grouped, in_parts
from tests.plan.test_unlike_replicas import one_of_each

CLUSTER = topo.load("case5-worldwide")
NAMES = [device.name for device in CLUSTER.devices]
SEQUENCE = 128


def exported(plan: Plan, system: TrainingSystem) -> dict[str, str]:
    return export_plan(plan, system, sequence=SEQUENCE, devices=NAMES)


def plan_of(*, cut: list[int], replicas: int, microbatches: int, chunks: int = 1) -> Plan:
    schedule = ScheduleKind.ONE_F_ONE_B if chunks == 1 else ScheduleKind.INTERLEAVED
    config = PlanConfig(
        cluster=CLUSTER.name,
        stages=len(cut),
        replicas=replicas,
        cut=tuple(cut),
        chunks=chunks,
        microbatch=2,
        schedule=schedule,
    )
    batch = 2 * microbatches * replicas
    return default_plan(config, CLUSTER, num_layers=sum(cut), batch=batch, tied=True)


CUTS = st.lists(st.integers(1, 5), min_size=2, max_size=6)
PLANS = st.builds(
    plan_of, cut=CUTS, replicas=st.integers(1, 3), microbatches=st.integers(6, 8)
) | st.builds(
    lambda cut, replicas: plan_of(
        cut=cut * 2, replicas=replicas, microbatches=2 * len(cut), chunks=2
    ),
    CUTS,
    st.integers(1, 2),
)


def options(text: str) -> dict[str, str]:
    """Return the options of a file of arguments, by name."""
    words = [line.partition(" ") for line in text.splitlines()]
    return {name.removeprefix("--"): value.strip('"') for name, _, value in words}


def titan_options(text: str) -> dict[str, list[str]]:
    """Return the words of each option of torchtitan, by its name; the last word is none's."""
    *words, checkpoint = shlex.split(text)
    given: dict[str, list[str]] = {"": [checkpoint]}
    for word in words:
        if word.startswith("--"):
            given[word.removeprefix("--")] = []
        else:
            list(given.values())[-1].append(word)
    return given


def cut_of_layout(layout: str) -> list[int]:
    """Return the layers of each stage of Megatron's layout: `t*3` is `ttt`."""
    stages = re.sub(r"(\w)\*(\d+)", lambda m: m[1] * int(m[2]), layout).split("|")
    assert "".join(stages)[0] == "E"
    assert "".join(stages)[-1] == "L"
    return [stage.count("t") for stage in stages]


@given(plan=PLANS)
def test_the_schedule_is_read_back_from_cells_of_torch(plan: Plan):
    text = exported(plan, TrainingSystem.TORCH_CSV)[".csv"]
    # As `_Action.from_str` reads a cell: stage, computation, microbatch.
    for rank, row in enumerate(text.splitlines()):
        for cell in row.split(","):
            match = re.fullmatch(r"(\d+)(F|B|I|W)(\d+)", cell)
            assert match is not None, cell
            assert int(match[1]) % plan.num_pipeline_ranks == rank
    rows = parse_schedule(text.splitlines(), source="text", num_stages=plan.num_stages)
    assert rows == plan.compute_schedule()


@given(plan=PLANS)
def test_torchtitan_gets_every_module_once_in_order(plan: Plan):
    files = exported(plan, TrainingSystem.TORCHTITAN)
    given = titan_options(files[".torchtitan.args"])
    names = [part.split(",") for part in given["parallelism.module_fqns_per_model_part"]]
    layers = [f"layers.{layer}" for layer in range(sum(plan.cut))]
    assert [*chain.from_iterable(names)] == ["tok_embeddings", *layers, "norm", "lm_head"]
    assert [sum("layers" in name for name in stage) for stage in names] == list(plan.cut)
    number = {name: int(words[0]) for name, words in given.items() if "".join(words).isdigit()}
    assert len(names) % number["parallelism.pipeline_parallel_degree"] == 0
    local = number["training.local_batch_size"]
    microbatch = number["parallelism.pipeline_parallel_microbatch_size"]
    assert local // microbatch == plan.num_microbatches
    replicas = number["parallelism.data_parallel_replicate_degree"]
    assert number["training.global_batch_size"] == local * replicas
    assert given["parallelism.pipeline_parallel_schedule_csv"] == ["plan.csv"]
    assert files[".csv"] == exported(plan, TrainingSystem.TORCH_CSV)[".csv"]


@given(plan=PLANS)
def test_megatron_has_the_layers_of_each_stage(plan: Plan):
    given = options(exported(plan, TrainingSystem.MEGATRON)[".megatron.args"])
    layout = given["pipeline-model-parallel-layout"]
    assert cut_of_layout(layout) == list(plan.cut)
    assert int(given["num-layers"]) == sum(plan.cut)
    assert int(given["pipeline-model-parallel-size"]) * plan.num_chunks == plan.num_stages
    samples = int(given["global-batch-size"]) // int(given["micro-batch-size"])
    assert samples == plan.num_microbatches * plan.num_replicas


@given(plan=PLANS.filter(lambda plan: plan.num_chunks == 1))
def test_deepspeed_has_the_layers_of_each_stage(plan: Plan):
    files = exported(plan, TrainingSystem.DEEPSPEED)
    parts = json.loads(files[".deepspeed-parts.json"])
    # As `PipelineModule` does: stage i has layers parts[i] to parts[i + 1] of all of them.
    sizes = [end - start for start, end in pairwise(parts)]
    sizes[0], sizes[-1] = sizes[0] - 1, sizes[-1] - 1
    assert sizes == list(plan.cut)
    config = json.loads(files[".deepspeed.json"])
    assert config["pipeline"]["stages"] == plan.num_stages
    product = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"]
    assert config["train_batch_size"] == product * plan.num_replicas


@given(plan=PLANS)
def test_ranks_are_numbered_stage_by_stage(plan: Plan):
    names = exported(plan, TrainingSystem.TORCHTITAN)[".ranks.txt"].split()
    for rank, name in enumerate(names):
        stage, replica = divmod(rank, plan.num_replicas)
        assert name == NAMES[plan.placement[replica][stage]]


def test_what_a_plan_does_besides_is_written():
    plan = plan_of(cut=[2, 2], replicas=1, microbatches=4)
    plan = replace(plan, tied=False, remat=Remat.FULL)
    given = exported(plan, TrainingSystem.MEGATRON)[".megatron.args"]
    assert "--untie-embeddings-and-output-weights" in given
    assert "--recompute-granularity full" in given
    titan = titan_options(exported(plan, TrainingSystem.TORCHTITAN)[".torchtitan.args"])
    assert titan[""] == ["activation-checkpoint:full"]
    deepspeed = json.loads(exported(plan, TrainingSystem.DEEPSPEED)[".deepspeed.json"])
    assert deepspeed["pipeline"]["activation_checkpoint_interval"] == 1
    plain = plan_of(cut=[2, 2], replicas=1, microbatches=4)
    assert "untie" not in exported(plain, TrainingSystem.MEGATRON)[".megatron.args"]


def with_codec() -> Plan:
    plan = plan_of(cut=[2, 2], replicas=1, microbatches=4)
    pipelines = tuple(replace(p, codecs=(CodecKind.INT8,)) for p in plan.pipelines)
    return replace(plan, pipelines=pipelines)


def test_the_name_of_the_schedule_file_stays_one_word():
    plan = plan_of(cut=[2, 2], replicas=1, microbatches=4)
    text = export_plan(
        plan,
        TrainingSystem.TORCHTITAN,
        sequence=SEQUENCE,
        devices=NAMES,
        csv_name="my plan; $(id).csv",
    )[".torchtitan.args"]
    given = titan_options(text)
    assert given["parallelism.pipeline_parallel_schedule_csv"] == ["my plan; $(id).csv"]


@given(plan=PLANS)
def test_megatrons_parser_reads_the_layout(plan: Plan):
    parser = pytest.importorskip(
        "megatron.core.transformer.pipeline_parallel_layer_layout", reason="needs megatron-core"
    )
    given = options(exported(plan, TrainingSystem.MEGATRON)[".megatron.args"])
    layout = parser.PipelineParallelLayerLayout.from_str(
        given["pipeline-model-parallel-layout"], int(given["pipeline-model-parallel-size"])
    )
    layout.validate_layer_layout(int(given["num-layers"]), None)


@pytest.mark.parametrize(
    ("plan", "system", "words"),
    [
        (one_of_each(), "torch-csv", "`replica` is unlike another, which torch-csv does not"),
        (in_parts(), "megatron", "`replica`|`sharing` is data parts, which megatron"),
        (with_codec(), "torchtitan", "`codecs` is int8, which torchtitan .*plan without"),
        (
            replace(plan_of(cut=[2, 2], replicas=1, microbatches=4), schedule=ScheduleKind.ZB_H1),
            "megatron",
            "`schedule` is zb-h1, .* set plan.schedule=1f1b or interleaved-1f1b",
        ),
        (
            plan_of(cut=[1, 1, 1, 1], replicas=1, microbatches=4, chunks=2),
            "deepspeed",
            "`schedule` is interleaved-1f1b, .* set plan.schedule=1f1b",
        ),
        (replace(grouped(), sharing=Sharing.ZERO3), "megatron", "`replica`|`sharing` is zero3"),
    ],
)
def test_what_a_system_does_not_have_is_refused(plan: Plan, system: str, words: str):
    with pytest.raises(PlanError, match=words):
        exported(plan, TrainingSystem(system))
