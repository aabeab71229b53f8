"""Ways to corrupt the files of a checkpoint, as disks, copies and people do.

Each takes the folders of a run's checkpoints by their steps, breaks at least the newest, and says
what it did. No damage leaves all files as they were.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeAlias

from jaxpipe.runtime.storage.checksum import seal, unseal

_PAGE_BYTES = 4096
_LENGTH_BYTES = 8
"""Bytes of the length of the header, with which a shard begins."""

Folders: TypeAlias = Mapping[int, Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What was done, and to the checkpoints of which steps."""

    what: str
    steps: frozenset[int]


Break: TypeAlias = Callable[[Folders, Random], Damage]


def flip_bit(folders: Folders, random: Random) -> Damage:
    """Flip one bit, in metadata as often as in tensors."""
    path, data = _choose(folders, random)
    first, stop = _part(path, data, random)
    byte, bit = random.randrange(first, stop), random.randrange(8)
    changed = bytearray(data)
    changed[byte] ^= 1 << bit  # a flip is never without effect
    path.write_bytes(changed)
    return _in_newest(folders, f"flip bit {bit} of byte {byte} of {path.name}")


def truncate(folders: Folders, random: Random) -> Damage:
    """Truncate a file: anywhere, or by its last byte."""
    path, data = _choose(folders, random)
    length = random.choice([random.randrange(len(data)), len(data) - 1, 0])
    path.write_bytes(data[:length])
    return _in_newest(folders, f"truncate {path.name} to {length} of {len(data)} bytes")


def lengthen(folders: Folders, random: Random) -> Damage:
    """Append bytes: blanks, zeros, or a part of the file itself."""
    path, data = _choose(folders, random)
    added = random.choice([b" ", b"\n", b"\0" * _PAGE_BYTES, data[-_PAGE_BYTES:]])
    path.write_bytes(data + added)
    return _in_newest(folders, f"append {len(added)} bytes to {path.name}")


def remove(folders: Folders, random: Random) -> Damage:
    """Remove a file."""
    path, _ = _choose(folders, random)
    path.unlink()
    return _in_newest(folders, f"remove {path.name}")


def zero_page(folders: Folders, random: Random) -> Damage:
    """Fill a page with zeros, as a file system does that lost a write."""
    path, data = _choose(folders, random)
    pages = range(0, len(data), _PAGE_BYTES)
    # An empty page would stay as it is.
    page = random.choice([p for p in pages if any(data[p : p + _PAGE_BYTES])])
    length = len(data[page : page + _PAGE_BYTES])
    path.write_bytes(data[:page] + bytes(length) + data[page + length :])
    return _in_newest(folders, f"fill bytes {page} to {page + length} of {path.name} with zeros")


def take_older(folders: Folders, random: Random) -> Damage:
    """Replace a file of the newest step by that of an older one."""
    path, _ = _choose(folders, random)
    older = random.choice(sorted(folders)[:-1])
    path.write_bytes((folders[older] / path.name).read_bytes())
    return _in_newest(folders, f"replace {path.name} by that of step {older}")


def swap_files(folders: Folders, random: Random) -> Damage:
    """Exchange two shards of a checkpoint."""
    newest = folders[max(folders)]
    one, other = random.sample(sorted(newest.glob("*.safetensors")), 2)
    _exchange(one, other)
    return _in_newest(folders, f"exchange {one.name} and {other.name}")


def swap_between_steps(folders: Folders, random: Random) -> Damage:
    """Exchange the same file of two steps, or all of two folders."""
    newest, older = max(folders), random.choice(sorted(folders)[:-1])
    path, _ = _choose(folders, random)
    if random.random() < 1 / 3:
        _exchange(folders[newest], folders[older])
        what = "the folders"
    else:
        _exchange(path, folders[older] / path.name)
        what = path.name
    return Damage(
        what=f"exchange {what} of steps {older} and {newest}", steps=frozenset((older, newest))
    )


def drop_tensor(folders: Folders, random: Random) -> Damage:
    """Drop a tensor from the manifest, and seal that again, as a faulty program might."""
    path = folders[max(folders)] / "manifest.json"
    tree = unseal(path.read_bytes(), version=1)
    dropped = tree["tensors"].pop(random.randrange(len(tree["tensors"])))
    path.write_bytes(seal(tree, version=1))
    return _in_newest(folders, f"drop {dropped['name']} from the manifest")


BREAKS: tuple[Break, ...] = (
    *(flip_bit,) * 4,
    *(truncate,) * 2,
    *(remove, zero_page, take_older, swap_files, swap_between_steps, lengthen, drop_tensor),
)
"""In turn: of thirteen trials, four flip a bit and two truncate a file."""


def _choose(folders: Folders, random: Random) -> tuple[Path, bytes]:
    # Sorted: a folder has no order, and a seed has to choose the same file each time.
    path = random.choice(sorted(folders[max(folders)].iterdir()))
    return path, path.read_bytes()


def _part(path: Path, data: bytes, random: Random) -> tuple[int, int]:
    """Return the range of bytes from which one is drawn."""
    if path.suffix != ".safetensors":
        return 0, len(data)
    header = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    # The header is a small part of the file: uniform bytes would hardly ever meet it.
    return random.choice([(0, header), (header, len(data))])


def _exchange(one: Path, other: Path) -> None:
    aside = one.with_name(f"{one.name}.aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def _in_newest(folders: Folders, what: str) -> Damage:
    return Damage(what=what, steps=frozenset((max(folders),)))
