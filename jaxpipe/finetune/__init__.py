"""Fine-tuning: low-rank adapters (LoRA) of any model, and frozen parameters by pattern.

::

    model ──► TunedModel ──► stages: gradients, moments and messages of what is trained alone
    checkpoint ──► merged tensors ──► export, samples        adapters ──► files of PEFT

`tuned_model` and `merge` are not imported here: `--help` needs neither jax nor numpy.
"""

from jaxpipe.finetune.adapter_names import ADAPTERS, LORA_A, LORA_B, is_adapter
from jaxpipe.finetune.lora_config import LoraConfig

__all__ = ["ADAPTERS", "LORA_A", "LORA_B", "LoraConfig", "is_adapter"]
