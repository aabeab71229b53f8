"""Names of adapters: those of the kernel that they adapt, with a suffix.

::

    blocks.3.attention.query.kernel          (in, out)
    blocks.3.attention.query.kernel_lora_a   (in, rank)
    blocks.3.attention.query.kernel_lora_b   (rank, out)

    blocks.3.moe.up                          (experts, in, out)
    blocks.3.moe.up_lora_a                   (experts, in, rank)
    blocks.3.moe.up_lora_b                   (experts, rank, out)
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


def can_adapt(num_dims: int) -> bool:
    """Return whether a parameter of a layer is a kernel, or those of experts."""
    return num_dims >= 2


def of_experts(name: str, num_dims: int) -> bool:
    """Return whether a parameter of a layer has kernels of experts: a dim before the inputs.

    Of other kernels the first dim are inputs and others outputs; if they have three dims, their
    name is `kernel`.

    >>> of_experts("moe.up", 3), of_experts("attention.qkv.kernel", 4), of_experts("moe.router", 2)
    (True, False, False)
    """
    return num_dims == 3 and name.rpartition(".")[2] != _KERNEL


def factor_shapes(
    name: str, shape: tuple[int, ...], rank: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of A and B of a parameter of a layer, of which B may have several outputs.

    >>> factor_shapes("moe.up", (8, 4, 6), 2), factor_shapes("qkv.kernel", (4, 3, 6), 2)
    (((8, 4, 2), (8, 2, 6)), ((4, 2), (2, 3, 6)))
    """
    first = int(of_experts(name, len(shape)))
    experts, inputs, outputs = shape[:first], shape[first], shape[first + 1 :]
    return (*experts, inputs, rank), (*experts, rank, *outputs)


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
