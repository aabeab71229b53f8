"""The comparison over emulated networks: jaxpipe's part, small; weights, meters and the table."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.over_the_wire.curves import Kill, last_step, peer_clocks, peer_points
from experiments.over_the_wire.meters import Meters, Sample
from experiments.over_the_wire.outcomes import (
    CURVES,
    NETWORKS,
    RECOVERY,
    RUNS,
    STATED_LOSS,
    TABLE,
    medians,
    run_row,
    table_row,
    write_table,
)
from experiments.over_the_wire.processes import run_together
from experiments.over_the_wire.run import cell_of, measure, wanted
from experiments.over_the_wire.systems import JAXPIPE, Outcome, System, read_systems
from experiments.over_the_wire.task_files import first_losses, samples, write_task
from experiments.over_the_wire.tune import grid
from experiments.table import read_csv, write_csv
from jaxpipe import topo
from jaxpipe.runtime.data import Source, prepare
from jaxpipe.topo.emulate import EngineKind
from tests.topo.emulate.machine import needs_namespaces

FOLDER = Path("experiments/over_the_wire")
_TINY = ("model.num_layers=2", "model.dim=16", "model.num_heads=2", "train.steps=4")
_UNUSED = Path("unused")


def _system(name: str) -> System:
    (system,) = (system for system in read_systems() if system.name == name)
    return system


@pytest.mark.root
@pytest.mark.mpi
@pytest.mark.slow
def test_a_pipeline_is_trained_over_its_network():
    needs_namespaces(EngineKind.RELAY)
    cell, outcome = measure(_system("jaxpipe: pipeline"), "universities", _UNUSED, _TINY)
    assert [point.step for point in outcome.points] == [1, 2, 3, 4]
    # At least a latency there and back: the last stage has to answer the first one.
    assert outcome.points[1].seconds - outcome.points[0].seconds > 0.03
    assert outcome.points[-1].held_out is not None
    cpu_s, sent_bytes = outcome.meters.of_training()
    # Activations and their gradients, 4 bytes a value, in three steps at least.
    activations = cell.config.train.batch * cell.config.model.sequence * 16
    assert sent_bytes > 3 * 2 * 4 * activations
    assert cpu_s > 0
    assert outcome.meters.peak_bytes > 2**26


@pytest.mark.root
@pytest.mark.slow
def test_an_island_goes_on_when_the_other_one_is_killed():
    needs_namespaces(EngineKind.RELAY)
    changes = (*_TINY[:-1], "train.steps=100")
    cell, outcome = measure(
        _system("jaxpipe: islands apart, mean"), "universities", _UNUSED, changes, kills=True
    )
    assert cell.kill_after is not None
    assert [point.step for point in outcome.points] == list(range(1, 101))
    of_survivor, of_killed = map(len, outcome.clocks)
    assert of_killed < of_survivor == 100
    assert outcome.recovery_s > 0


def test_each_network_is_read_by_its_name():
    for name in NETWORKS:
        assert topo.load(str(FOLDER / "networks" / f"{name}.toml")).name == name


def test_a_task_has_the_weights_and_the_samples_of_jaxpipe(tmp_path: Path):
    prepare(Source(), tmp_path / "data")
    cell = cell_of(_system("torch ddp: ddp"), "home", tmp_path, _TINY)
    write_task(tmp_path / "task", cell.config, {"schedule": "ddp"})
    with np.load(tmp_path / "task/weights.npz") as file:
        shapes = {name: file[name].shape for name in file.files}
    assert shapes["blocks.1.qkv.weight"] == (48, 16)
    assert shapes["blocks.1.up.weight"] == (64, 16)
    assert len(shapes) == 2 + 2 * 12 + 2
    task = json.loads((tmp_path / "task/task.json").read_text())
    assert task["schedule"] == "ddp"
    assert len(task["learning_rates"]) == 4
    assert task["eval_steps"] == [1, 4]
    batches, held_out = samples(cell.config)
    assert batches.shape == (4, 32, 129)
    assert held_out.shape == (32, 129)
    (whole,) = first_losses(cell.config, num_parts=1)
    assert whole == pytest.approx(np.log(256), abs=0.1)
    assert np.mean(first_losses(cell.config, num_parts=2)) == pytest.approx(whole, rel=1e-5)


def test_only_takes_a_system_a_schedule_and_a_network():
    systems = read_systems()
    assert len(wanted([], ["home"])) == len(systems)
    # Of four hosts, those without stages of their own.
    assert len(wanted([], ["regions"])) == sum(not system.cut for system in systems)
    assert {s.system for s, _ in wanted([JAXPIPE], ["home"])} == {JAXPIPE}
    ((system, network),) = wanted(["torchft: diloco/home"], NETWORKS)
    assert (system.name, network) == ("torchft: diloco", "home")
    with pytest.raises(ValueError, match="`--only horovod/home` matches nothing; systems are hive"):
        wanted(["horovod/home"], NETWORKS)


def test_all_systems_are_tuned_on_one_grid():
    rates = {
        system.name: [tried.learning_rate for tried, _ in grid(system)] for system in read_systems()
    }
    assert rates["torch ddp: ddp"] == [5e-4, 1e-3, 2e-3]
    assert rates["torchft: diloco"] == rates["jaxpipe: islands"]
    assert len(rates["torchft: diloco"]) == 9
    assert rates["torchft: local-sgd"] == rates["jaxpipe: islands, mean"] == [5e-4, 1e-3, 2e-3]
    # They compute the updates of `torch ddp: ddp`.
    assert rates["jaxpipe: pipeline"] == rates["torch pipelining: gpipe"] == []


def test_losses_of_ranks_become_one_curve(tmp_path: Path):
    first = [{}, {"step": 1, "step_s": 2.0, "loss": 4.0, "eval_loss": 3.5}]
    second = [{}, {"step": 1, "step_s": 9.0, "loss": 5.0, "eval_loss": None}]
    for rank, lines in enumerate((first, second)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"steps-{rank}.jsonl").write_text(text)
    (point,) = peer_points(tmp_path)
    assert (point.step, point.seconds, point.loss, point.held_out) == (1, 2.0, 4.5, 3.5)


def test_tokens_of_ranks_that_wait_for_nobody_are_counted_by_the_clock_of_each(tmp_path: Path):
    for rank, step_s in enumerate((1.0, 4.0)):
        lines = [{"step": n, "step_s": step_s, "loss": 3.0, "eval_loss": None} for n in (1, 2, 3)]
        text = "".join(json.dumps(line) + "\n" for line in ({}, *lines))
        (tmp_path / f"steps-{rank}.jsonl").write_text(text)
    clocks = peer_clocks(tmp_path)
    assert clocks == ((1.0, 2.0, 3.0), (4.0, 8.0, 12.0))
    samples = [Sample(steps=n, cpu_s=0.0, sent_bytes=0, resident_bytes=0) for n in (0, 1, 3)]
    outcome = Outcome(points=peer_points(tmp_path), clocks=clocks, meters=Meters(samples=samples))
    cell = cell_of(_system("hivemind: gradients"), "campus", tmp_path, ())
    row = run_row(cell, outcome, number=0)
    tokens = cell.config.train.batch * cell.config.model.sequence
    assert row["step_seconds"] == 1.0
    assert row["tokens_per_second"] == tokens / 2 * (1 + 1 / 4)


def test_the_last_step_is_that_of_whole_lines(tmp_path: Path):
    path = tmp_path / "steps.jsonl"
    assert last_step(path) is None
    path.write_text("{}\n")
    assert last_step(path) == 0
    path.write_text('{}\n{"step": 1}\n{"step": 2')
    assert last_step(path) == 1


def test_a_rank_is_killed_once_and_the_longest_wait_is_kept(tmp_path: Path):
    path, killed = tmp_path / "steps.jsonl", []
    kill = Kill(after=1, progress=path, kill=lambda: killed.append(1))
    for step in (0, 1, 2, 3):
        path.write_text("".join(f'{{"step": {s}}}\n' for s in range(step + 1)))
        kill.watch()
        kill.watch()
    assert killed == [1]
    assert kill.recovery_s >= 0


def test_a_command_that_fails_ends_the_others(tmp_path: Path):
    commands = [("sh", "-c", "echo no such rank; exit 3"), ("sleep", "60")]
    with pytest.raises(RuntimeError, match="exited with 3:\nno such rank"):
        run_together(commands, tmp_path, timeout_s=30.0)


def test_commands_that_take_too_long_are_named(tmp_path: Path):
    with pytest.raises(TimeoutError, match=r"sleep.* took more than 0\.2 s"):
        run_together([("sleep", "60")], tmp_path, timeout_s=0.2)


def test_a_row_compares_at_equal_time_and_at_equal_tokens():
    row = {"network": "home", "system": "a", "schedule": "b", "run": "0"}
    metered = ("step_seconds", "tokens_per_second", "gigabytes", "cpu_seconds", "peak_memory_mb")
    curve = [(1.0, 5.0), (5.0, 3.0), (9.0, 2.5)]
    cells = table_row(row | dict.fromkeys(metered, "1"), curve, {"home": 3.0}, {("a", "b"): "7"})
    assert cells["loss_after_time"] == "4"
    assert cells["loss_after_tokens"] == "2.5"
    assert float(cells["seconds_to_loss"]) == pytest.approx(1 + 4 * (5 - STATED_LOSS) / 2)
    assert cells["recovery_seconds"] == "7"


def test_the_table_has_a_row_for_each_run_and_medians_have_a_spread(tmp_path: Path):
    key = {"network": "home", "system": "a", "schedule": "b"}
    runs = [
        {
            **key,
            "run": number,
            "plan": "",
            "step_seconds": seconds,
            "tokens_per_second": 1.0,
            "gigabytes": 1.0,
            "cpu_seconds": 1.0,
            "peak_memory_mb": 1.0,
            "load": "1.0",
        }
        for number, seconds in enumerate((1.0, 2.0, 4.0))
    ]
    curves = [
        {**key, "run": run["run"], "step": step, "seconds": seconds, "loss": 4, "held_out": loss}
        for run in runs
        for step, seconds, loss in ((1, 1.0, 5.0), (2, 2.0, 4.0))
    ]
    write_csv(runs, tmp_path / RUNS)
    write_csv(curves, tmp_path / CURVES)
    write_csv([{**key, "run": 0, "recovery_seconds": 6.5}], tmp_path / RECOVERY)
    (line,) = write_table(tmp_path)
    assert line["step_seconds"] == "2 (1 to 4)"
    assert line["recovery_seconds"] == "6.5 (6.5 to 6.5)"
    table = read_csv(tmp_path / TABLE)
    assert [row["run"] for row in table] == ["0", "1", "2"]
    assert ",".join(table[0]) == (
        "network,system,schedule,run,step_seconds,tokens_per_second,loss_after_time,"
        "loss_after_tokens,seconds_to_loss,gigabytes,cpu_seconds,peak_memory_mb,recovery_seconds"
    )
    assert (tmp_path / "home.png").exists()
    assert medians(table)[0]["network"] == "home"
