"""Fine-tuning: low-rank adapters (LoRA) of any model, and frozen parameters by pattern.

::

    model ──► TunedModel ──► stages: gradients, moments and messages of what is trained alone
    checkpoint ──► merged tensors ──► export, samples        adapters ──► files of PEFT

`jaxpipe.finetune.tuned_model` is not imported here: a configuration needs no jax.
"""

from jaxpipe.finetune.adapter_names import ADAPTERS, LORA_A, LORA_B, is_adapter
from jaxpipe.finetune.lora_config import LoraConfig
from jaxpipe.finetune.merge import merged_tensors

__all__ = ["ADAPTERS", "LORA_A", "LORA_B", "LoraConfig", "is_adapter", "merged_tensors"]
