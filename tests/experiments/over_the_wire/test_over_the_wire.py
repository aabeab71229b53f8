"""The comparison over emulated networks: jaxpipe's part, small, and its table."""

from pathlib import Path

import pytest

from experiments.over_the_wire.run import NETWORKS, measure, summarise
from jaxpipe import topo
from jaxpipe.runtime.data import Source, prepare
from jaxpipe.topo.emulate import EngineKind
from tests.topo.emulate.machine import needs_namespaces

_TINY = ("model.num_layers=2", "model.dim=16", "model.num_heads=2", "train.steps=4")


@pytest.mark.root
@pytest.mark.mpi
@pytest.mark.slow
def test_a_plan_is_trained_over_its_network(tmp_path: Path):
    needs_namespaces(EngineKind.RELAY)
    prepare(Source(), tmp_path / "data")
    (row,) = measure("universities", tmp_path, 0, torch_python=None, settings=_TINY)
    assert row["system"] == "jaxpipe"
    # At least a latency there and back: the last stage has to answer the first one.
    assert float(row["step_seconds"]) > 0.03
    assert (tmp_path / "plan.csv").exists()


def test_each_network_is_read_by_its_name():
    for name in NETWORKS:
        assert (
            topo.load(str(Path("experiments/over_the_wire/networks") / f"{name}.toml")).name == name
        )


def test_speeds_are_over_the_best_own_schedule_of_torch():
    def row(system: str, schedule: str, seconds: float) -> dict[str, str]:
        names = {"network": "home", "system": system, "schedule": schedule}
        return {**names, "step_seconds": str(seconds)}

    rows = [
        row("jaxpipe", "custom", 1.0),
        *(row("torch", "gpipe", seconds) for seconds in (4.0, 6.0, 5.0)),
        row("torch", "1f1b", 8.0),
        row("torch", "custom of jaxpipe", 2.5),
    ]
    table = {(line["system"], line["schedule"]): line["over_torch"] for line in summarise(rows)}
    assert table == {
        ("jaxpipe", "custom"): 5.0,
        ("torch", "gpipe"): 1.0,
        ("torch", "1f1b"): 0.625,
        ("torch", "custom of jaxpipe"): 2.0,
    }
