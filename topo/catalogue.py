"""Catalogue of clusters: TOML files that come with jaxpipe by name, and a user's own by path.

A file has groups of equal hosts, and the links between regions::

    name = "two-region"

    [[hosts]]                       # 2 hosts called ohio-0 and ohio-1
    region = "ohio"                 # a list of regions: `count` in each
    count = 2
    devices = 1
    gpu = "V100-SXM2"               # a row of data/gpus.csv; optional
    nic_gbps = 10                   # shared by all devices of a host; optional

    [[links]]                       # `between` sets both directions,
    between = ["ohio", "virginia"]  # `source` and `destination` one
    latency_ms = 11                 # one way
    bandwidth_gbps = 1.12

    [inside_region]                 # between hosts of one region
    latency_ms = 1
    bandwidth_gbps = 5              # of a pair while all others communicate
    alone_gbps = 10                 # of a pair alone; optional

    [inside_host]                   # between devices of one host
    latency_ms = 0
    bandwidth_gbps = 100

`link_table` names a CSV file of links (region_a, region_b, latency_ms, bandwidth_gbps), and
`pairs` gives matrices over the devices, inline or as .csv or .npy files, instead of links.
The parameters of a table `parameters` can be set after the name: `load("homogeneous:hosts=8")`.

One cluster has no file: `this-machine` (`jaxpipe.topo.this_machine`).
"""

import difflib
import os
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from jaxpipe.foreign_file import decode_text, read_regular, reason_of
from jaxpipe.topo.build_cluster import build
from jaxpipe.topo.cluster import Cluster
from jaxpipe.topo.cluster_file import parse
from jaxpipe.topo.csv_table import csv_rows
from jaxpipe.topo.names import check_settings
from jaxpipe.topo.parameters import Value, split_settings, substitute
from jaxpipe.topo.this_machine import THIS_MACHINE, file_of_this_machine
from jaxpipe.topo.toml_text import parse_toml

_MOST_TOML_BYTES = 2**28
_MOST_BYTES = 2**31
"""Of a file that a cluster file names; matrices of 8192 devices take 0.5 GiB as NPY."""


def names() -> tuple[str, ...]:
    """Return the names of all clusters of the catalogue; `this-machine` is in no catalogue."""
    folder = resources.files("jaxpipe.topo") / "data"
    return tuple(sorted(p.name[:-5] for p in folder.iterdir() if p.name.endswith(".toml")))


@cache
def site_positions() -> Mapping[str, tuple[float, float]]:
    """Return latitude and longitude in degrees of the regions whose place is known.

    >>> site_positions()["tokyo"]
    (35.7, 139.7)
    """
    text = (resources.files("jaxpipe.topo") / "data" / "sites.csv").read_text()
    return {
        row["region"]: (float(row["latitude"]), float(row["longitude"])) for row in csv_rows(text)
    }


def parse_cluster(text: str) -> Cluster:
    """Return the cluster in the text of a file that names no file beside it.

    >>> from jaxpipe.topo.write import cluster_toml
    >>> parse_cluster(cluster_toml(load("two-region"))).regions
    ('ohio', 'virginia')

    Raises:
        ValueError: it is invalid.
    """
    parsed = parse(parse_toml(text))
    return build(parsed, name=parsed.name, read_beside=lambda beside: _read(Path(), beside))


def load(name_or_path: str) -> Cluster:
    """Return a cluster by its name in the catalogue, or from a TOML file.

    >>> load("aws:regions=ohio+tokyo,hosts=4").regions
    ('ohio', 'tokyo')

    Raises:
        ValueError: there is no such cluster, or the file cannot be read or is invalid.
    """
    name, settings = split_settings(name_or_path)
    # The catalogue first: a file of that name in the current folder must not replace it.
    if name == THIS_MACHINE:
        return _built(name_or_path, lambda: file_of_this_machine(settings, os.environ), Path())
    if name in names():
        folder = resources.files("jaxpipe.topo") / "data"
        file = folder / f"{name}.toml"
    elif _is_file(Path(name)):
        folder, file = Path(name).parent, Path(name)
    else:
        choices = (THIS_MACHINE, *names())
        near = difflib.get_close_matches(name, choices, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"no cluster {name!r}: {hint}give a TOML file or one of {', '.join(choices)}"
        )
    read = partial(_content, file, most_bytes=_MOST_TOML_BYTES)
    return _built(name_or_path, lambda: parse_toml(decode_text(read())), folder)


def _built(name_or_path: str, read: Callable[[], dict[str, Value]], folder: Traversable) -> Cluster:
    """Return the cluster of the file that `read` returns; the files that it names are in `folder`.

    Raises:
        ValueError: it cannot be read or is invalid.
    """
    name, settings = split_settings(name_or_path)
    try:
        check_settings(settings)
        parsed = parse(substitute(read(), settings))
        # With the settings, so that two variants of a cluster have different names.
        full_name = parsed.name + name_or_path.removeprefix(name)
        return build(parsed, name=full_name, read_beside=lambda beside: _read(folder, beside))
    except OSError as error:
        raise ValueError(f"cluster {name_or_path!r} cannot be read: {reason_of(error)}") from error
    except ValueError as error:
        raise ValueError(f"cluster {name_or_path!r}: {error}") from error


def _is_file(path: Path) -> bool:
    try:
        return path.exists() and not path.is_dir()  # what is no file is refused as it is read
    except OSError:  # the name is too long, for example
        return False


def _read(folder: Traversable, beside: str) -> bytes:
    file = folder / beside
    if not file.is_file():
        raise ValueError(f"file {beside!r} is missing in the folder of the cluster file")
    return _content(file, most_bytes=_MOST_BYTES)


def _content(file: Traversable, *, most_bytes: int) -> bytes:
    if isinstance(file, Path):
        return read_regular(file, most_bytes=most_bytes)
    return file.read_bytes()  # of this package, in an archive
