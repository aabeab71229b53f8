"""The compile cache: on by default, whole files, shared without races, private, bounded."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxpipe.runtime.process import compile_cache
from jaxpipe.runtime.process.compile_cache import (
    cache_folder,
    publish,
    use_compile_cache,
    variables_of_cache,
    warmth,
)

PROCESS = """
import os, sys
from pathlib import Path
from jaxpipe.runtime.process.compile_cache import use_compile_cache
use_compile_cache(os.environ)
view = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
print(*sorted(each.name for each in view.iterdir()), flush=True)
for name in sys.argv[1:]:
    (view / f"{name}-cache").write_bytes(name.encode() * 100)
sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache folder of the user for this test; jax's own variables are not set."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def started(*names: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PROCESS, *names]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def entries_of(process: "subprocess.Popen[str]") -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def test_processes_share_what_they_have_compiled(home: Path) -> None:
    first, second = started("a", "b"), started("a", "c")
    assert entries_of(first) == entries_of(second) == []
    store = cache_folder(os.environ)
    assert not list(store.glob("*-cache"))  # nothing enters it while it may be written
    for process in (first, second):
        process.communicate("", timeout=20)
        assert process.returncode == 0
    assert {each.name: each.read_bytes() for each in store.glob("*-cache")} == {
        f"{name}-cache": name.encode() * 100 for name in "abc"
    }
    third = started()
    assert entries_of(third) == ["a-cache", "b-cache", "c-cache"]
    third.communicate("", timeout=20)
    assert not list((store / "views").iterdir())
    assert home.stat().st_mode & 0o777 in (0o700, 0o755)
    assert store.stat().st_mode & 0o022 == 0


def test_a_killed_process_leaves_no_torn_file_and_its_view_is_removed(home: Path) -> None:
    killed = started("a")
    entries_of(killed)
    killed.kill()
    killed.communicate(timeout=20)
    store = cache_folder(os.environ)
    assert len(list((store / "views").iterdir())) == 1
    following = started()
    assert entries_of(following) == []
    assert len(list((store / "views").iterdir())) == 1  # its own
    following.communicate("", timeout=20)


def test_what_is_published_is_there_before_the_process_ends(home: Path, tmp_path: Path) -> None:
    store = cache_folder(os.environ)
    view = store / "views" / "here.1.00"
    view.mkdir(parents=True)
    (view / "a-cache").write_bytes(b"a")
    publish({"JAX_COMPILATION_CACHE_DIR": str(view)})
    assert (store / "a-cache").read_bytes() == b"a"
    (tmp_path / "b-cache").write_bytes(b"b")
    publish({"JAX_COMPILATION_CACHE_DIR": str(tmp_path)})  # the user's own
    publish({})
    assert [each.name for each in store.glob("*-cache")] == ["a-cache"]


def test_processes_share_a_folder_by_views_of_their_own(tmp_path: Path) -> None:
    store = tmp_path / "compiled"
    parent = variables_of_cache(store)
    use_compile_cache(parent)
    view = Path(parent["JAX_COMPILATION_CACHE_DIR"])
    assert view.parent.parent == store
    (view / "a-cache").write_bytes(b"half")  # jax has begun to write
    child = dict(parent)
    use_compile_cache(child)
    inside = Path(child["JAX_COMPILATION_CACHE_DIR"])
    assert inside.parent == view.parent != inside
    assert not list(inside.iterdir())
    publish(parent)
    assert [each.name for each in store.glob("*-cache")] == ["a-cache"]
    publish(child)
    assert [each.name for each in inside.iterdir()] == ["a-cache"]


@pytest.mark.parametrize(
    "settings",
    [{"JAX_COMPILATION_CACHE_DIR": "mine"}, {"JAX_ENABLE_COMPILATION_CACHE": "False"}],
)
def test_variables_of_jax_move_it_or_switch_it_off(home: Path, settings: dict[str, str]) -> None:
    environment = {**os.environ, **settings}
    use_compile_cache(environment)
    assert environment == {**os.environ, **settings}
    assert not home.exists()


def test_a_cache_that_others_may_write_is_not_used(home: Path) -> None:
    store = cache_folder(os.environ)
    store.mkdir(parents=True)
    store.chmod(0o777)
    environment = dict(os.environ)
    use_compile_cache(environment)
    assert environment == os.environ


def test_a_missing_home_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("could not determine home directory")

    monkeypatch.setattr(Path, "home", no_home)
    environment = {"XDG_CACHE_HOME": "relative"}
    use_compile_cache(environment)
    assert environment == {"XDG_CACHE_HOME": "relative"}


def test_the_executables_used_least_recently_are_removed(tmp_path: Path) -> None:
    store = tmp_path / "processor"
    store.mkdir()
    now_s = time.time()
    for age, name in enumerate("abcde"):
        (store / f"{name}-cache").write_bytes(bytes(100))
        os.utime(store / f"{name}-cache", (now_s - age, now_s - age))
    compile_cache.prune(tmp_path, max_bytes=500)
    assert len(list(store.iterdir())) == 5
    compile_cache.prune(tmp_path, max_bytes=400)
    assert sorted(each.name for each in store.iterdir()) == ["a-cache", "b-cache", "c-cache"]


def test_warmth_says_how_much_came_from_the_cache() -> None:
    assert [warmth(3, hits) for hits in range(4)] == ["cold", "1 of 3 warm", "2 of 3 warm", "warm"]
