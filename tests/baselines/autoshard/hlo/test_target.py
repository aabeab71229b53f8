"""Steps are compiled for forced host devices, and for GPUs that are not there."""

from pathlib import Path

import pytest

from jaxpipe.baselines.autoshard.hlo import (
    CompileTarget,
    has_gpu_compiler,
    run_python,
    target_devices,
)
from jaxpipe.baselines.autoshard.hlo import target as hlo_target
from jaxpipe.errors import ConfigError, RunError

ROOT = Path(__file__).parents[4]
PROGRAM = "tests.programs.compile_product"


def test_a_process_of_its_own_has_devices_enough() -> None:
    (found,) = run_python(PROGRAM, [CompileTarget.CPU.value], num_devices=4, path=ROOT)
    assert found["counts"]["allreduce"] == found["counts"]["num_comm"] == 1
    assert found["arguments"] == 4 * (8 * 2 + 2 * 8)
    assert found["beside"] == []


@pytest.mark.skipif(not has_gpu_compiler(), reason="the extra `aot` is not installed")
@pytest.mark.parametrize("target", [CompileTarget.V100, CompileTarget.H200])
def test_gpus_need_not_be_there(target: CompileTarget) -> None:
    (found,) = run_python(PROGRAM, [target.value], num_devices=1, path=ROOT)
    assert found["counts"]["allreduce"] == found["counts"]["num_comm"] == 1
    assert found["arguments"] == 4 * (8 * 2 + 2 * 8)
    assert len(found["beside"]) == 1


@pytest.mark.skipif(has_gpu_compiler(), reason="the extra `aot` is installed")
def test_the_extra_is_named_where_it_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"`target` 'v100' .* pip install 'jaxpipe\[aot\]'"):
        target_devices(CompileTarget.V100, num_devices=1)


def test_too_few_host_devices() -> None:
    with pytest.raises(ConfigError, match=r"`num_devices` must be at most .* not 4096"):
        target_devices(CompileTarget.CPU, num_devices=4096)


def test_what_a_process_says_last_is_told() -> None:
    with pytest.raises(RunError, match=r"compile_product` ended with 1: ValueError: .abacus."):
        run_python(PROGRAM, ["abacus"], num_devices=1, path=ROOT)


def test_a_process_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hlo_target, "TIMEOUT_S", 0.05)
    with pytest.raises(RunError, match=r"compile_product` did not end within 0\.05 s"):
        run_python(PROGRAM, [CompileTarget.CPU.value], num_devices=1, path=ROOT)
