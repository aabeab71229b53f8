"""One device, layer by layer, computes what one device computes at once; the experiment runs."""

import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.case_tree import case_tree
from experiments.gpt_xl import run as experiment
from experiments.gpt_xl.layer_by_layer import LayerByLayer
from experiments.table import read_csv
from jaxpipe.config import config_from, job_from
from jaxpipe.plan import islands_of
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.data import Source, prepare
from jaxpipe.verify.one_device import OneDevice

CASES = tomllib.loads((Path(experiment.__file__).parent / "cases.toml").read_text())


@pytest.mark.slow
def test_layer_by_layer_is_one_device(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("a little text, over and over. " * 200)
    prepare(Source(path=text), tmp_path / "data")
    tree = case_tree(CASES["tiny"], CASES["base"], run=tmp_path / "run", data=tmp_path / "data")
    config = config_from(tree)
    job = job_from(config, plan_from(config))
    whole, layered = OneDevice(job), LayerByLayer(job)
    (island,) = islands_of(job.plan, num_islands=1)
    at_once, apart = whole.start(), layered.start()
    for step in range(3):
        result = whole.step(at_once, step=step, island=island)
        at_once = whole.update(at_once, result, clip_norm=job.optimizer.clip_norm)
        assert layered.step(apart, step=step) == pytest.approx(result.loss, rel=1e-6)
    blocks = jax.tree.map(lambda *leaf: np.concatenate(leaf), *apart.layers)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6),
        {**apart.ends, "blocks": blocks},
        at_once.params,
    )


@pytest.mark.slow
@pytest.mark.mpi
def test_the_tiny_size_runs(tmp_path: Path):
    experiment.main("tiny", results=tmp_path, steps=3, profile=False)
    steps = read_csv(tmp_path / "tiny-steps.csv")
    assert [row["step"] for row in steps] == ["1", "2", "3"]
    assert all(row["one device"] for row in steps[:2])
    (facts,) = read_csv(tmp_path / "tiny-facts.csv")
    assert facts["resumed_steps_equal"] == "3 to 3"
    assert int(facts["exported_tensors_equal"]) > 0


@pytest.mark.parametrize(
    ("size", "steps", "words"),
    [("base", None, "`size` must be one of xl, .*, not 'base'"), ("tiny", 2, "`--steps` must be")],
)
def test_a_wrong_request_is_refused(tmp_path: Path, size: str, steps: int | None, words: str):
    with pytest.raises(SystemExit, match=words):
        experiment.main(size, results=tmp_path, steps=steps)
