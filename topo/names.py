r"""The rule for names in files: clusters, hosts, regions, devices, switches and GPUs.

Names end up in scripts that root runs, in paths, in SLURM's and MPI's files and on terminals, and
their files may come from strangers. So a name is a plain word::

    name      ohio-0, gpu01.lab, H100-SXM5        letters, digits, `.`, `_`, `-`; at most 64
    host      gpu01.lab, 10.0.0.1                 a name as in RFC 1123, or an address of IPv4
    device    ohio-0:1                            a name, a colon, a number
    cluster   homogeneous:hosts=2,delay_ms=60     a name, and the settings of its parameters

64 is the length of a host name in Linux. Nothing in a name is special to a shell, to YAML or to a
path: no blank, quote, slash or control character, no hyphen or dot at the beginning, no empty part
between dots.

>>> check_name("ohio-0", "name")
'ohio-0'
>>> check_name("a\nreboot", "name")
Traceback (most recent call last):
ValueError: `name` must be letters, digits, `.`, `_` and `-`, the first a letter or a digit, ...
"""

import ipaddress
import re
from collections.abc import Mapping

LONGEST = 64
"""Characters of a name; of the settings behind the name of a cluster it is 16 times that."""

_LONGEST_WORD = 63
"""Characters between the dots of the name of a host."""

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?=[A-Za-z0-9_])){0,63}"
"""Dots stand between words, as in RFC 1123: neither two in a row, nor one at the end."""
_IS_NAME = re.compile(_NAME)
_IS_DEVICE = re.compile(rf"{_NAME}(:[0-9]{{1,9}})?")
_IS_CLUSTER = re.compile(rf"{_NAME}(:[A-Za-z0-9._+=,/-]{{0,1024}})?")
_RULE = (
    f"letters, digits, `.`, `_` and `-`, the first a letter or a digit, at most {LONGEST} of them, "
    "with something after each `.`"
)


def is_name(text: str) -> bool:
    """Return whether a text is the name of a host, a region, a switch or a GPU.

    For files of other formats, whose errors name the line and keep its content to themselves.
    """
    return _IS_NAME.fullmatch(text) is not None


def is_address(text: str) -> bool:
    """Return whether a text is an address of IPv4 or IPv6."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_host_name(text: str) -> bool:
    """Return whether a text is the name of a host, or its address of IPv4.

    A name whose last word is a number would be read as an address: `10.1` as 10.0.0.1. Underscores
    are no part of RFC 1123, but of names that machines have.

    >>> [is_host_name(text) for text in ("gpu_01.lab", "10.0.0.1", "999.0.0.1", "a-", "a-.lab")]
    [True, True, False, False, False]
    """
    words = text.split(".")
    is_right = all(len(word) <= _LONGEST_WORD and word[-1:] != "-" for word in words)
    return is_name(text) and is_right and (not words[-1].isdecimal() or is_address(text))


def check_host(name: str, field: str) -> str:
    """Return the name of a host, if it is one.

    Raises:
        ValueError: it is not; the message names the `field`.
    """
    if not is_host_name(check_name(name, field)):
        raise ValueError(
            f"`{field}` must be the name of a host as in RFC 1123: words of at most "
            f"{_LONGEST_WORD} characters that end with a letter or a digit, the last of them no "
            f"number, or an address of IPv4, not {_shown(name)}"
        )
    return name


def check_name(name: str, field: str) -> str:
    """Return the name of a host, a region, a switch or a GPU, if it is one.

    Raises:
        ValueError: it is not; the message names the `field`.
    """
    if not is_name(name):
        raise ValueError(f"`{field}` must be {_RULE}, not {_shown(name)}")
    return name


def check_device(name: str, field: str) -> str:
    """Return the name of a device, such as `ohio-0:1`, if it is one.

    Raises:
        ValueError: it is not; the message names the `field`.
    """
    if not _IS_DEVICE.fullmatch(name):
        raise ValueError(
            f"`{field}` must be the names of devices, such as ohio-0:1, not {_shown(name)}"
        )
    return name


def check_cluster(name: str, field: str) -> str:
    """Return the name of a cluster, with or without settings, if it is one.

    >>> check_cluster("aws:regions=ohio+tokyo,hosts=4", "cluster")
    'aws:regions=ohio+tokyo,hosts=4'

    Raises:
        ValueError: it is not; the message names the `field`.
    """
    if not _IS_CLUSTER.fullmatch(name):
        raise ValueError(
            f"`{field}` must be {_RULE}, or such a name with settings, as in "
            f"`homogeneous:hosts=8,delay_ms=20`, not {_shown(name)}"
        )
    return name


def check_settings(settings: Mapping[str, str]) -> None:
    """Check the settings that follow the name of a cluster.

    Raises:
        ValueError: one holds a character that a name of a cluster cannot hold.
    """
    for key, value in settings.items():
        if not _IS_CLUSTER.fullmatch(f"x:{key}={value}"):
            raise ValueError(
                f"`{key:.40}` ({_shown(value)}) must be letters, digits and `._+/-`, as all "
                "settings of a cluster"
            )


def _shown(name: str) -> str:
    return f"{name!r:.80}"
