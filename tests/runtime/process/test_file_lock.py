"""One after the other by a lock file, and beside each other where that cannot be."""

import os
from pathlib import Path
from threading import Event, Thread

from jaxpipe.runtime.process.file_lock import in_turn, lock_within


def test_a_lock_is_held_until_its_file_is_closed(tmp_path: Path):
    first, second = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert lock_within(first, 0.0)
    assert not lock_within(second, 0.05)
    os.close(first)
    assert lock_within(second, 0.0)
    os.close(second)


def test_turns_follow_each_other_and_leave_no_file(tmp_path: Path):
    path, order, entered = tmp_path / "new" / "lock", list[str](), Event()

    def second() -> None:
        entered.set()
        with in_turn(path, wait_s=60.0):
            order.append("second")

    thread = Thread(target=second)
    with in_turn(path, wait_s=0.0):
        thread.start()
        assert entered.wait(60.0)
        thread.join(0.1)
        order.append("first")
    thread.join(60.0)
    assert order == ["first", "second"]
    assert not path.exists()


def test_who_has_waited_long_enough_goes_on(tmp_path: Path):
    path = tmp_path / "lock"
    with in_turn(path, wait_s=0.0):
        with in_turn(path, wait_s=0.05):
            pass
        assert path.exists()  # it belongs to the process that holds the lock
    assert not path.exists()


def test_a_file_that_cannot_be_made_locks_nothing(tmp_path: Path):
    (tmp_path / "file").touch()
    with in_turn(tmp_path / "file" / "lock", wait_s=60.0):
        pass
