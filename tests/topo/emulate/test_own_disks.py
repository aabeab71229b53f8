"""Emulated hosts with disks of their own: what one writes, no other sees."""

import os
import subprocess
from pathlib import Path

import pytest

from jaxpipe import topo
from jaxpipe.topo.emulate import EngineKind, emulated
from jaxpipe.topo.emulate.own_disks import disk_of
from tests.topo.emulate.machine import leftovers, needs_namespaces


@pytest.mark.root
def test_each_host_has_its_own_content_which_stays(tmp_path: Path) -> None:
    needs_namespaces(EngineKind.UNSHAPED)
    disk = tmp_path / "a disk's"
    disk.mkdir()
    (disk / "of the machine").touch()
    with emulated(topo.load("two-region"), kind=EngineKind.UNSHAPED) as emulation:
        emulation.give_disks([disk])

        def listed_after(host: str, name: str) -> list[str]:
            begin = f'touch "$0/{name}" && ls "$0"'
            command = (*emulation.enter(host), "sh", "-c", begin, str(disk))
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
            return done.stdout.splitlines()

        assert listed_after("ohio-0", "one") == ["one"]
        assert listed_after("ohio-1", "two") == ["two"]
        assert listed_after("ohio-0", "three") == ["one", "three"]
        assert (disk_of(emulation.owner, 1, disk) / "two").exists()
        assert [path.name for path in disk.iterdir()] == ["of the machine"]
    assert leftovers(os.getpid()) == []


@pytest.mark.root
@pytest.mark.parametrize("path", ["disk", "/nowhere"])
def test_a_disk_is_a_folder_with_its_full_path(path: str) -> None:
    needs_namespaces(EngineKind.UNSHAPED)
    with (
        emulated(topo.load("two-region"), kind=EngineKind.UNSHAPED) as emulation,
        pytest.raises(ValueError, match="`--own-disk` must be a folder"),
    ):
        emulation.give_disks([Path(path)])
