"""Names of adapters: those of the kernel that they adapt, with a suffix.

::

    blocks.3.attention.query.kernel          (in, out)
    blocks.3.attention.query.kernel_lora_a   (in, rank)
    blocks.3.attention.query.kernel_lora_b   (rank, out)
"""

from fnmatch import fnmatchcase
from typing import Final

LORA_A: Final = "_lora_a"
LORA_B: Final = "_lora_b"
ADAPTERS: Final = (LORA_A, LORA_B)

_KERNEL: Final = "kernel"


def is_adapter(name: str) -> bool:
    """Return whether a parameter is part of an adapter, by its name."""
    return name.endswith(ADAPTERS)


def can_adapt(name: str, num_dims: int) -> bool:
    """Return whether a parameter of a layer is a kernel: its first dim are inputs, others outputs.

    Of three dims and more only those with that name are: experts have a dim before the inputs.
    """
    return num_dims == 2 or (num_dims > 2 and name.rpartition(".")[2] == _KERNEL)


def module_of(name: str) -> str:
    """Return the name of the module of a kernel in its layer, or of the matrix itself.

    >>> module_of("attention.query.kernel"), module_of("up")
    ('attention.query', 'up')
    """
    return name.removesuffix(f".{_KERNEL}")


def matches(module: str, pattern: str) -> bool:
    """Return whether a pattern matches the name of a module, or what follows one of its dots.

    >>> matches("local.attention.query", "attention.*"), matches("attention.query", "query")
    (True, True)
    >>> matches("attention.query", "attention")
    False
    """
    parts = module.split(".")
    return any(fnmatchcase(".".join(parts[i:]), pattern) for i in range(len(parts)))
