"""From a configuration of the catalogue to its model. Imports jax."""

from jaxpipe.models.catalogue import ModelConfig
from jaxpipe.models.gpt import Gpt
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.models.llama import Llama


def build_model(config: ModelConfig) -> Gpt | Llama:
    """Return the model of a configuration; it holds no parameters."""
    return Gpt(config) if isinstance(config, GptConfig) else Llama(config)
