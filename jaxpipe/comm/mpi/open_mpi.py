"""Settings of Open MPI that jaxpipe makes where neither the environment nor a file has them."""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from jaxpipe.foreign_file import lines_of, read_text

_EAGER_BYTES = 32 * 2**20
_SETTINGS: Final = {
    # Messages over TCP up to this size are sent without a rendezvous, a round trip that far links
    # make long and that is not needed: receives are posted ahead.
    "btl_tcp_eager_limit": f"{_EAGER_BYTES}",
    "btl_tcp_rndv_eager_limit": f"{_EAGER_BYTES}",
    # How many buffers of that size are made at once: 32 by default, which is 1 GiB.
    "btl_tcp_free_list_inc": "2",
    # Not the component `ofi`, which serves one-sided communication alone: where it finds no network
    # of its kind, `MPI_Init` closes it, and that sleeps for a second (seen in Open MPI 5.0.11).
    "btl": "^ofi",
}
_FILE = "openmpi-mca-params.conf"
_SYSTEM = (Path("/etc/openmpi"), Path("/etc"))
_MOST_BYTES = 2**20


def chosen_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Open MPI should have, in addition to those of `environment`.

    What the environment sets stays, as do settings in the files of Open MPI, of this user and of
    this host: a variable would win over those.

    >>> chosen_settings({"OMPI_MCA_btl": "self,sm"})["OMPI_MCA_btl_tcp_free_list_inc"]
    '2'
    """
    in_files = frozenset(name for path in _files(environment) for name in _names(path))
    settings = {
        f"OMPI_MCA_{name}": value for name, value in _SETTINGS.items() if name not in in_files
    }
    return {name: value for name, value in settings.items() if name not in environment}


def _files(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files that Open MPI may read; its prefix is found by its launcher and variables."""
    if home := environment.get("HOME"):
        yield Path(home) / ".openmpi" / "mca-params.conf"
    launcher = shutil.which("mpirun", path=environment.get("PATH", os.defpath))
    prefixes = [environment.get("OPAL_PREFIX"), sys.prefix]
    if launcher is not None:
        prefixes += [Path(launcher).parent.parent, Path(launcher).resolve().parent.parent]
    folders = [Path(prefix) / "etc" for prefix in prefixes if prefix]
    for folder in dict.fromkeys([*folders, *_SYSTEM]):
        yield folder / _FILE


def _names(path: Path) -> frozenset[str]:
    """Return the names that a file sets; all of `_SETTINGS` if it cannot be read."""
    try:
        text = read_text(path, most_bytes=_MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    except (OSError, ValueError):
        return frozenset(_SETTINGS)
    matches = (re.match(r"\s*(\w+)\s*=", line) for line in lines_of(text))
    return frozenset(match[1] for match in matches if match)
