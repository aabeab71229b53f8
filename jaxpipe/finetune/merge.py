"""The tensors of a tuned model, merged: those of a model without adapters. Without jax."""

from collections.abc import Iterable, Set

import numpy as np

from jaxpipe.finetune.adapter_names import LORA_A, LORA_B
from jaxpipe.finetune.lora_config import LoraConfig
from jaxpipe.runtime.checkpoint import Read


def merged_tensors(read: Read, present: Set[str], lora: LoraConfig) -> Read:
    """Return what reads tensors by their names, with the adapters among those `present` merged.

    Sums are float32, and rounded once to the format of the kernel.

    >>> tensors = {"up": np.ones((2, 1)), "up_lora_a": np.ones((2, 1)), "up_lora_b": 3 * np.ones(1)}
    >>> read = lambda names: {name: tensors[name] for name in names}
    >>> merged_tensors(read, tensors.keys(), LoraConfig(rank=1, alpha=2.0))(["up"])["up"].tolist()
    [[7.0], [7.0]]
    """

    def read_merged(names: Iterable[str]) -> dict[str, np.ndarray]:
        wanted = list(names)
        adapted = [name for name in wanted if name + LORA_A in present]
        tensors = dict(read([*wanted, *(n + s for n in adapted for s in (LORA_A, LORA_B))]))
        for name in adapted:
            a, b = (tensors.pop(name + suffix).astype(np.float32) for suffix in (LORA_A, LORA_B))
            # Those of experts have a dim before the inputs.
            product = a @ b if a.ndim > 2 else np.tensordot(a, b, 1)
            added = lora.scale * product.reshape(tensors[name].shape)
            tensors[name] = (tensors[name].astype(np.float32) + added).astype(tensors[name].dtype)
        return tensors

    return read_merged if lora.is_on else read
