"""A stage over several devices computes what one device does; tried on four forced ones."""

import subprocess
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxpipe.errors import ConfigError
from jaxpipe.models import layer_residual_bytes_of_part, parameters_of_part
from jaxpipe.runtime.rank_mesh import MeshConfig
from jaxpipe.runtime.stage.mesh import ONE_DEVICE, layout_over
from tests.helpers import mpi_command, mpi_environment
from tests.oracles.one_device import (
    MICROBATCH,
    TOLERANCE,
    loss_and_gradients,
    tiny_gpt,
    worst_error,
)
from tests.programs.meshed import MESH, SHAPES
from tests.programs.mpi_gradients import read_result
from tests.programs.mpi_mesh import CASES, file_of, tokens
from tests.programs.report import devices, report_of

ROUNDING = 1e-5


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what `tests.programs.meshed` has found."""
    return report_of("meshed", tmp_path_factory.mktemp("meshed"), num_devices=4)


@pytest.mark.mpi
def test_gradients_equal_those_of_one_device_over_mpi(tmp_path: Path) -> None:
    command = mpi_command(2, "-m", "tests.programs.mpi_mesh", str(tmp_path))
    subprocess.run(command, env=mpi_environment() | devices(4), check=True, timeout=240)
    for number, case in enumerate(CASES):
        seen = set[str]()
        for rank in range(2):
            gradients, totals = read_result(file_of(tmp_path, rank, number))
            assert worst_error(gradients, totals, tokens(), tied=True) <= TOLERANCE, case
            seen |= set(gradients)
        assert seen == set(loss_and_gradients(tokens(), tied=True)[1]), case


@pytest.mark.slow
@pytest.mark.parametrize("name", ["with", "gained", "lost"])
def test_losses_and_checkpoints_are_those_of_one_device(report: dict[str, Any], name: str) -> None:
    losses = report["losses"]
    assert losses[name] == pytest.approx(losses["without"], rel=ROUNDING)


@pytest.mark.slow
def test_a_scaled_loss_changes_no_bit(report: dict[str, Any]) -> None:
    assert report["scaled"] == report["losses"]["with"]


@pytest.mark.slow
def test_a_layer_sums_after_attention_and_after_the_mlp_alone(report: dict[str, Any]) -> None:
    assert report["forward"] == {"all-reduce": 2}
    # The way back has as many, and gathers the gradient of a bias.
    assert report["backward"] == {"all-reduce": 2, "all-gather": 1}


@pytest.mark.slow
def test_a_device_holds_half_of_the_kernels(report: dict[str, Any]) -> None:
    on_first, in_all = report["bytes"]
    assert 2 * on_first == in_all


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layer", "first", "last"])
def test_a_device_holds_what_the_model_says(report: dict[str, Any], name: str) -> None:
    """What was compiled for four devices agrees with the closed forms to the byte."""
    shape, tensor, data = SHAPES[name], MESH["tensor"], MESH["data"]
    config = tiny_gpt(tied=shape["tied"]).config
    layers, ends = shape["cut"][shape["stage"]], (shape["stage"] == 0, shape["stage"] == 2)
    parameters = parameters_of_part(
        config, layers=layers, embed=ends[0], head=ends[1], tensor=tensor
    )
    samples = MICROBATCH // data
    kept = layer_residual_bytes_of_part(
        config, batch=samples, sequence=config.sequence, tensor=tensor
    )
    of_parameters, of_residuals = report["held"][name]
    assert of_parameters == 4 * parameters
    # The embedding keeps tokens, the head its input and logits: little, and not of a layer.
    assert layers * kept.none <= of_residuals
    if not any(ends):
        assert of_residuals == layers * kept.none


def test_every_name_of_a_split_is_a_parameter() -> None:
    gpt = tiny_gpt(tied=False)
    params = jax.eval_shape(
        lambda: gpt.init(jax.random.key(0), layers=range(1), embed=True, head=True)
    )
    paths, _ = jax.tree.flatten_with_path(params)
    assert set(gpt.split) <= {".".join(key.key for key in path) for path, _ in paths}


def test_a_mesh_of_one_device_is_none() -> None:
    assert layout_over(jax.local_devices(), MeshConfig(), split={}) is ONE_DEVICE


def test_a_mesh_of_more_devices_than_there_are_is_refused() -> None:
    words = (
        r"`mesh.context` x `mesh.tensor` = 1 x 1 x 99 = 99 must be .* this rank sees \d+; lower one"
    )
    with pytest.raises(ConfigError, match=words):
        layout_over(jax.local_devices(), MeshConfig(tensor=99), split={})
