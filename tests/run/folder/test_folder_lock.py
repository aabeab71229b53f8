"""One run at a time in a folder; locks of processes that have died are taken over."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from jaxpipe.errors import ConfigError
from jaxpipe.run.folder import folder_lock
from jaxpipe.run.folder.folder_lock import LOCK_FILE, Holder, holder_of, locked

HOLDS = """
import sys, time
from pathlib import Path
from jaxpipe.run.folder.folder_lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def held_by_another_process(folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLDS, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def lock_of(folder: Path) -> Holder:
    return msgspec.json.decode((folder / "lock").read_bytes(), type=Holder)


def write_lock(folder: Path, holder: Holder, *, age_s: float = 0.0) -> None:
    (folder / "lock").write_bytes(msgspec.json.encode(holder))
    then_s = time.time() - age_s
    os.utime(folder / "lock", (then_s, then_s))


@pytest.fixture
def mine(tmp_path: Path) -> Holder:
    with locked(tmp_path):
        return lock_of(tmp_path)


def test_a_second_run_is_refused_and_the_holder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locked(folder):
        expected = (
            f"`run.folder` {folder} is in use by process {os.getpid()} on .* since .*; wait for "
            f"it, stop it with `kill {os.getpid()}`, or name another folder"
        )
        with pytest.raises(ConfigError, match=expected), locked(folder):
            pass
        (folder / "plan.toml").touch()
    assert [each.name for each in folder.iterdir()] == ["plan.toml"]
    with locked(folder):
        pass


USES = """
import sys
from pathlib import Path
from jaxpipe.errors import ConfigError
from jaxpipe.run.folder.folder_lock import locked
try:
    with locked(Path(sys.argv[1])) as lock:
        lock.beat()
        print("used")
except ConfigError:
    print("refused")
"""


def test_a_lock_of_the_parent_is_used_and_stays(tmp_path: Path) -> None:
    command = [sys.executable, "-c", USES, str(tmp_path)]
    grandchild = ["sh", "-c", '"$@"; exit $?', "sh", *command]
    with locked(tmp_path):
        before = lock_of(tmp_path)
        answers = [
            subprocess.run(words, capture_output=True, text=True, check=True).stdout
            for words in (command, grandchild)
        ]
        assert answers == ["used\n", "refused\n"]
        assert lock_of(tmp_path) == before
    assert not (tmp_path / "lock").exists()


def test_a_lock_is_used_by_those_that_have_its_token(tmp_path: Path) -> None:
    with locked(tmp_path, beats=False) as mine:
        before = lock_of(tmp_path)
        with locked(tmp_path, token=mine.token):
            assert lock_of(tmp_path) == before
        assert lock_of(tmp_path) == before
        with pytest.raises(ConfigError), locked(tmp_path, token="another"):
            raise AssertionError("it is held")
    with locked(tmp_path, token="another"):  # nobody holds it
        assert lock_of(tmp_path) != before


def test_an_input_that_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    with locked(tmp_path / "new"):
        pass
    assert not (tmp_path / "new").exists()


def test_a_killed_holder_is_found_and_replaced(tmp_path: Path) -> None:
    with held_by_another_process(tmp_path) as process:
        assert holder_of(tmp_path) == lock_of(tmp_path)
        with pytest.raises(ConfigError, match=f"process {process.pid}"), locked(tmp_path):
            pass
        process.send_signal(signal.SIGKILL)
        # Not waited for yet: a zombie holds no lock.
        deadline_s = time.monotonic() + 10.0
        while holder_of(tmp_path) is not None and time.monotonic() < deadline_s:
            time.sleep(0.01)
        with locked(tmp_path):
            assert lock_of(tmp_path).process == os.getpid()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="start times are read from /proc")
def test_a_process_id_that_is_used_again_is_no_holder(tmp_path: Path, mine: Holder) -> None:
    assert mine.started is not None
    write_lock(tmp_path, replace(mine, started=mine.started - 1))
    with locked(tmp_path):
        assert lock_of(tmp_path).started == mine.started


@pytest.mark.parametrize("is_readable", [True, False])
def test_a_holder_elsewhere_is_judged_by_its_beats(
    tmp_path: Path, mine: Holder, is_readable: bool
) -> None:
    elsewhere = replace(mine, host="node-7", machine="another", process=1)
    write_lock(tmp_path, elsewhere, age_s=30.0)
    if not is_readable:
        (tmp_path / "lock").write_bytes(b"")
    words = "process 1 on node-7 .* last seen 30 s ago; .* remove " if is_readable else "remove "
    with pytest.raises(ConfigError, match=words), locked(tmp_path):
        pass
    write_lock(tmp_path, elsewhere, age_s=61.0)
    with locked(tmp_path):
        assert lock_of(tmp_path).host != "node-7"


def test_the_holder_touches_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "_BEAT_S", 0.01)
    with locked(tmp_path):
        os.utime(tmp_path / "lock", (0, 0))
        deadline_s = time.monotonic() + 10.0
        while (tmp_path / "lock").stat().st_mtime == 0 and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert (tmp_path / "lock").stat().st_mtime > 0


def test_of_many_that_find_a_stale_lock_one_takes_it(tmp_path: Path, mine: Holder) -> None:
    write_lock(tmp_path, replace(mine, machine="another"), age_s=100.0)
    start, taken, refused = threading.Barrier(8), list[str](), list[str]()
    done = threading.Barrier(8)

    def run() -> None:
        start.wait(20)
        try:
            with locked(tmp_path):
                taken.append(lock_of(tmp_path).token)
                done.wait(20)
        except ConfigError as error:
            refused.append(str(error))
            done.wait(20)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(taken), len(refused)) == (1, 7), refused


def test_a_file_system_without_links_has_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(folder_lock.errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with locked(tmp_path):
        assert lock_of(tmp_path).process == os.getpid()
        with pytest.raises(ConfigError, match="one run at a time"), locked(tmp_path):
            pass


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match=r"`run\.folder` must be a folder that can be written"),
        locked(tmp_path / "file" / "run"),
    ):
        pass


@pytest.mark.parametrize("name", [LOCK_FILE, f"{LOCK_FILE}.takeover"])
def test_a_folder_in_the_place_of_a_lock_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=rf"has a folder '{name}' in the place"), locked(tmp_path):
        pass
