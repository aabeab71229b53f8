"""Paced computes: any model, nothing trained, and it says so."""

import json
from pathlib import Path

import pytest

from jaxpipe import topo
from jaxpipe.baselines.systems import System
from jaxpipe.cli.main import main
from jaxpipe.config import load_config
from jaxpipe.plan import write_plan
from jaxpipe.run.forecast.simulate_step import simulate_step
from jaxpipe.trace import Truth, read_chrome
from tests.cli.conftest import WriteConfig
from tests.cli.test_runs import JAXPIPE, run
from tests.programs.grouped import BATCH, CLUSTERS, MODEL, layout_plan

PLAN = {"cluster": "two-region", "stages": 2, "replicas": 2}


@pytest.mark.mpi
def test_a_large_model_runs_without_its_data(write_config: WriteConfig, tmp_path: Path) -> None:
    config = write_config(
        model={"num_layers": 4, "dim": 1024, "num_heads": 8, "sequence": 64},
        plan=PLAN,
        data={"folder": "nowhere"},
        train={"steps": 1, "batch": 4},
        paced={"tflops": 500.0, "ideal": True},
    )
    job = run([*JAXPIPE, "train", str(config), "--compute", "paced"])
    assert job.returncode == 0, job.stderr
    assert "emulated, paced" in job.stdout
    assert "loss" not in job.stdout
    _, step = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert step["truth"] == "emulated, paced"
    assert step["step_s"] > 0
    trace = read_chrome(tmp_path / "run" / "trace.json")
    assert trace.truth is Truth.EMULATED
    assert {span.rank for span in trace.spans} == {0, 1, 2, 3}
    assert main(["trace", str(tmp_path / "run")]) == 0


@pytest.mark.mpi
@pytest.mark.parametrize(
    "layout", [System.MEGATRON_P2T4, pytest.param(System.ZERO3, marks=pytest.mark.deep)]
)
def test_ranks_of_several_devices_are_paced(
    layout: System, write_config: WriteConfig, tmp_path: Path
) -> None:
    cluster, file = CLUSTERS[layout], tmp_path / "plan.toml"
    write_plan(layout_plan(layout), topo.load(cluster), file)
    config = write_config(
        model=MODEL,
        plan={"cluster": cluster, "file": str(file)},
        train={"steps": 1, "batch": BATCH},
        paced={"tflops": 1e-4},
    )
    job = run([*JAXPIPE, "train", str(config), "--compute", "paced"])
    assert job.returncode == 0, job.stderr
    assert "ranks have 4 devices" in job.stdout
    _, step = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    simulated = simulate_step(load_config(config))
    # Simulated scalars have 64 bytes, those of a rank as many as it has: a difference of 3 us here.
    assert step["step_s"] >= max(span.end_s for span in simulated.spans) - 1e-4


@pytest.mark.parametrize(
    ("sections", "flags", "words"),
    [
        ({"comm": {"gradients": "int8"}}, (), "`comm.gradients` (int8) exclude each other"),
        ({}, ("--transport", "nccl"), "`--transport` (nccl) exclude each other"),
        ({}, ("--resume",), "`--resume` needs a checkpoint"),
    ],
)
def test_what_cannot_be_paced_is_refused(
    write_config: WriteConfig,
    capsys: pytest.CaptureFixture[str],
    sections: dict[str, dict[str, str]],
    flags: tuple[str, ...],
    words: str,
) -> None:
    config = write_config(plan=PLAN, **sections)
    assert main(["train", str(config), "--compute", "paced", *flags]) == 2
    assert words in capsys.readouterr().err
