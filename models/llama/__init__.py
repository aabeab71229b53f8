"""Decoders of the Llama type: Llama, Qwen 2 and 3, Mistral and Gemma 2.

`jaxpipe.models.llama.llama` is not imported here: planners need sizes and costs, not jax.
"""

from jaxpipe.models.llama.llama_config import Activation, LlamaConfig, RopeScaling

__all__ = ["Activation", "LlamaConfig", "RopeScaling"]
