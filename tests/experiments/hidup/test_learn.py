"""The SPMD program of `learn` has the microbatches, and the losses, of the pipeline."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxpipe
from experiments.hidup.learn import tree_of
from experiments.hidup.learn_spmd import DEVICES, dealt
from jaxpipe.baselines.autoshard.hlo import run_python
from jaxpipe.cli.data import SampleKind, prepare
from jaxpipe.config import config_from
from jaxpipe.runtime.metrics.records import StepMetrics

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("num_microbatches", [1, 2, 4])
def test_each_device_has_its_part_of_every_microbatch(num_microbatches: int) -> None:
    rows = np.arange(16)
    order = dealt(16, num_microbatches)
    devices = order.reshape(DEVICES, num_microbatches, -1)
    for number in range(num_microbatches):
        size = 16 // num_microbatches
        together = sorted(devices[:, number].ravel())
        assert together == rows[number * size : (number + 1) * size].tolist()


@pytest.mark.slow
@pytest.mark.deep
def test_losses_are_those_of_the_pipeline(tmp_path: Path) -> None:
    prepare(out=tmp_path / "data", kind=SampleKind.PICTURES, samples=200)
    case: dict[str, Any] = {"steps": 3, "batch": 16, "learning_rate": 1e-3}
    tree = tree_of("vit-switch-tiny", case, every=3, folder=tmp_path)
    tree["train"]["eval_batches"] = 1
    seen: list[StepMetrics] = []
    jaxpipe.train(config_from(tree), observe=seen.append)
    spmd = run_python("experiments.hidup.learn_spmd", tree, num_devices=DEVICES, path=ROOT)
    assert [each.loss for each in seen] == pytest.approx(spmd, abs=1e-5)
