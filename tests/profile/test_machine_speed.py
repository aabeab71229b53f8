"""The speed of this machine: measured in processes of its own, kept, and read without jax."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxpipe.errors import ConfigError
from jaxpipe.profile import machine_speed
from jaxpipe.profile.machine_speed import Speed, kept_speed, machine_key, measured_speed
from jaxpipe.profile.measuring_process import MeasuredApart, Measurement, measure_apart
from jaxpipe.runtime.storage.kept_file import KeptFile

SPEED = Speed(flops_per_s=1e9, copy_bytes_per_s=2e9)


def kept(folder: Path, **key: object) -> KeptFile:
    """Return a file in the caches in a folder."""
    return KeptFile(kind="speed", key=key, environment={"XDG_CACHE_HOME": str(folder)})


def test_what_is_kept_is_read(tmp_path: Path):
    assert kept(tmp_path, a=1).read(Speed) is None
    kept(tmp_path, a=1).write(SPEED)
    assert kept(tmp_path, a=1).read(Speed) == SPEED
    assert kept(tmp_path, a=2).read(Speed) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[" * 3000,
        b"\xff\xfe",
        b"{}",
        b'{"key": {"a": 1}, "checksum": "0", "value": {}}',
        b'{"key": {"a": 1}, "checksum": 7, "value": {}}',
    ],
)
def test_a_damaged_file_counts_as_none(tmp_path: Path, content: bytes):
    file = kept(tmp_path, a=1)
    file.write(SPEED)
    file.path.write_bytes(content)
    assert file.read(Speed) is None


def test_a_changed_digit_and_the_file_of_another_key_count_as_none(tmp_path: Path):
    file, other = kept(tmp_path, a=1), kept(tmp_path, a=2)
    file.write(SPEED)
    changed = file.path.read_bytes().replace(b"1000000000.0", b"1000000001.0")
    assert changed != file.path.read_bytes()
    other.path.write_bytes(file.path.read_bytes())
    assert other.read(Speed) is None
    file.path.write_bytes(changed)
    assert file.read(Speed) is None


def test_values_outside_their_range_count_as_none(tmp_path: Path):
    file = kept(tmp_path, a=1)
    file.write({"flops_per_s": -1.0, "copy_bytes_per_s": 1.0})
    assert file.read(Speed) is None


def test_a_folder_that_others_may_write_is_not_trusted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    file = kept(tmp_path, a=1)
    file.write(SPEED)
    file.path.parent.chmod(0o777)
    assert file.read(Speed) is None
    file.write(SPEED)
    assert "others may write" in caplog.text


def test_the_speed_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    assert kept_speed(environment) is None
    monkeypatch.setattr(
        machine_speed, "measure_apart", lambda *_, **__: MeasuredApart(value=[SPEED, SPEED])
    )
    assert measured_speed(keep=False, environment=environment).value == SPEED
    assert kept_speed(environment) is None
    assert measured_speed(environment=environment).value == SPEED
    assert kept_speed(environment) == SPEED


def test_the_kept_speed_needs_no_jax():
    code = (
        "import sys; from jaxpipe.profile.machine_speed import kept_speed; kept_speed({}); "
        "print('jax' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


def test_the_key_names_the_machine_and_the_versions():
    key = machine_key({})
    assert key.keys() == {"format", "processor", "cores", "jax", "jaxlib", "products"}
    assert json.loads(json.dumps(key)) == key


@pytest.mark.slow
def test_the_cores_of_this_machine_are_measured():
    details: list[str] = []
    speed = measured_speed(keep=False, observe=details.append).value
    assert 1e8 < speed.flops_per_s < 1e14
    assert details == ["matrix products", "copies in memory"]


def test_a_process_that_fails_is_named_with_its_last_line():
    with pytest.raises(ConfigError, match=r"`no_such` could not measure this machine: .*no_such"):
        measure_apart(Measurement(module="no_such"), Speed, cores=(0,), observe=lambda _: None)


@pytest.mark.slow
def test_a_core_that_others_use_is_shared():
    core = min(os.sched_getaffinity(0))
    other = "while True: pass"
    with subprocess.Popen(
        ["taskset", "--cpu-list", str(core), sys.executable, "-c", other]
    ) as busy:
        try:
            measurement = Measurement(module="jaxpipe.profile.speed_process")
            measured = measure_apart(measurement, Speed, cores=(core,), observe=lambda _: None)
        finally:
            busy.kill()
    assert measured.share < 0.7
    assert not measured.is_alone
