"""The compile cache of the user: what a rank has compiled, the next start reads.

::

    ~/.cache/jaxpipe/compiled/<processor>/     executables, each whole
        │ hard links                    ▲
        ▼                               │ links of new ones, once they are written
    views/<host>.<process>.<token>/     what jax reads and writes: one folder per process

jax writes its files in place, so a rank that is killed, or reads while another writes, would find
half of one. Here each process has a folder of its own, and a file enters the common one by a link,
which is atomic; the view that a process inherits from its parent only says where the common folder
is. The environment variables are jax's: `JAX_COMPILATION_CACHE_DIR` moves the cache, then jax alone
manages it, and `JAX_ENABLE_COMPILATION_CACHE=false` switches it off.
"""

import atexit
import logging
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path

from jaxpipe.runtime.process.user_cache import check_private, processor, user_cache

logger = logging.getLogger(__name__)

LEAST_SECONDS = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
"""jax's variable: what took less time to compile is not cached."""

_FOLDER, _SWITCH = "JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"
_FALSE = ("0", "false", "f", "no", "n", "off")
_VIEWS, _SUFFIX = "views", "-cache"
_MAX_BYTES = 2 * 2**30
_KEPT_FRACTION = 0.8
_FORGOTTEN_S = 30 * 86400.0


def use_compile_cache(environment: MutableMapping[str, str]) -> None:
    """Let jax, which is not imported yet, read and write the user's compile cache.

    Does nothing where jax's variables move the cache or switch it off, or where the cache cannot be
    written. New executables are published by `publish`, and when the process ends.
    """
    folder = environment.get(_FOLDER, "")
    if (folder and not _is_view(folder)) or environment.get(_SWITCH, "").lower() in _FALSE:
        return
    try:
        view = _open_view(Path(folder).parent.parent if folder else cache_folder(environment))
    except (OSError, RuntimeError) as error:  # pathlib raises the latter without a home
        logger.info("nothing is cached that is compiled: %s", error)
        return
    atexit.register(_close_view, view)
    environment.update(_variables(view))


def variables_of_cache(folder: Path) -> dict[str, str]:
    """Return variables by which processes share a cache in `folder`, once each calls the above."""
    return _variables(folder / _VIEWS / "none")


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the cache.

    Executables for one processor may not run on another, and homes are shared by machines.

    Raises:
        RuntimeError: the user has no home.
    """
    return user_cache(environment) / "compiled" / processor()


def publish(environment: Mapping[str, str]) -> None:
    """Let other processes read what this one has compiled, and this one what others published.

    jax must not be writing meanwhile. Nothing happens if the folder of jax's cache is not one of
    `use_compile_cache`.
    """
    folder = environment.get(_FOLDER, "")
    if _is_view(folder):
        view = Path(folder)
        _publish(view)
        _take(view.parent.parent, view)


def is_in_use(environment: Mapping[str, str]) -> bool:
    """Return whether this process reads and writes the cache of `use_compile_cache`."""
    is_off = environment.get(_SWITCH, "").lower() in _FALSE
    return _is_view(environment.get(_FOLDER, "")) and not is_off


def warmth(num_requests: int, num_hits: int) -> str:
    """Return whether compilation read the compile cache: `cold`, `warm`, or in part."""
    if num_hits == 0:
        return "cold"
    return "warm" if num_hits == num_requests else f"{num_hits} of {num_requests} warm"


def _variables(view: Path) -> dict[str, str]:
    return {
        _FOLDER: str(view),
        # By default, jax keeps only what takes a second to compile.
        LEAST_SECONDS: "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        # XLA's own caches would put the path of the view into the key of each executable.
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
    }


def _is_view(folder: str) -> bool:
    return Path(folder).parent.name == _VIEWS


def _publish(view: Path) -> None:
    store = view.parent.parent
    # One with another link came from the common folder, which has been pruned since.
    new = [name for name in _names(view) - _names(store) if (view / name).stat().st_nlink == 1]
    for name in new:
        with suppress(OSError):  # another rank has published the same, or the disk is full
            os.link(view / name, store / name)
    if new:
        prune(store.parent)


def _open_view(store: Path) -> Path:
    """Make a folder for this process that has all executables of the common one."""
    views = store / _VIEWS
    views.mkdir(parents=True, exist_ok=True, mode=0o700)
    for folder in (store, views):
        check_private(folder)
    _remove_forgotten(views)
    view = views / f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"
    view.mkdir(mode=0o700)
    _take(store, view)
    return view


def _take(store: Path, view: Path) -> None:
    """Let this process read what others have published."""
    for name in _names(store) - _names(view):
        # Another process has pruned it, or a thread of this one has compiled the same.
        with suppress(FileNotFoundError, FileExistsError):
            os.link(f"{store}/{name}", f"{view}/{name}")


def _names(folder: Path) -> set[str]:
    """Return the names of the executables in a folder, of which there may be ten thousand."""
    with suppress(FileNotFoundError):
        return {name for name in os.listdir(folder) if name.endswith(_SUFFIX)}
    return set()


def _close_view(view: Path) -> None:
    with suppress(OSError):
        _publish(view)
    shutil.rmtree(view, ignore_errors=True)


def _remove_forgotten(views: Path) -> None:
    """Remove the views of processes that were killed."""
    for view in views.iterdir():
        host, _, rest = view.name.rpartition(".")[0].rpartition(".")
        is_ours = host == socket.gethostname() and rest.isdecimal()
        with suppress(OSError):
            is_old = time.time() - view.stat().st_mtime > _FORGOTTEN_S
            if is_old or (is_ours and not _is_running(int(rest))):
                shutil.rmtree(view, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def prune(root: Path, *, max_bytes: int = _MAX_BYTES) -> None:
    """Remove the executables that were used least recently, of all processors, above a limit."""
    entries = list(_entries(root))
    num_bytes = sum(size for _, size, _ in entries)
    if num_bytes <= max_bytes:
        return
    for _, size, path in sorted(entries):
        Path(path).unlink(missing_ok=True)
        num_bytes -= size
        if num_bytes <= _KEPT_FRACTION * max_bytes:
            return


def _entries(root: Path) -> Iterator[tuple[float, int, str]]:
    """Yield when each executable was last read or written, its size and its path."""
    for store in filter(Path.is_dir, root.iterdir()):
        for name in _names(store):
            path = f"{store}/{name}"
            with suppress(FileNotFoundError):
                status = os.stat(path)
                yield max(status.st_atime, status.st_mtime), status.st_size, path
