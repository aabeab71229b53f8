"""The families of models and their configurations; without jax.

====================  =============================================================  ==============
family                models                                                         configuration
====================  =============================================================  ==============
(none)                GPT-2, encoders, vision transformers, mixtures of experts      `GptConfig`
`llama`               Llama, Qwen 2 and 3, Mistral, Gemma 2                          `LlamaConfig`
====================  =============================================================  ==============
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec

from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.load_presets import load_preset

ModelConfig: TypeAlias = GptConfig | LlamaConfig

FAMILY: Final = "family"
"""The field that names the family, in TOML and in checkpoints; without it, a model is a GPT."""

FAMILIES: Final = ("llama",)


def config_type(fields: Mapping[str, Any]) -> type[GptConfig] | type[LlamaConfig]:
    """Return the type of the configuration that has these fields.

    Raises:
        ValueError: there is no such family.

    >>> config_type({"family": "llama"}).__name__, config_type({}).__name__
    ('LlamaConfig', 'GptConfig')
    """
    family = fields.get(FAMILY)
    if family is None:
        return GptConfig
    if family not in FAMILIES:
        raise ValueError(
            f"`{FAMILY}` must be {' or '.join(FAMILIES)}, or left out for a GPT, not {family!r:.80}"
        )
    return LlamaConfig


def preset_config(name: str) -> ModelConfig:
    """Return the configuration of a preset.

    >>> preset_config("llama-3.2-1b").vocabulary, preset_config("gpt2").vocabulary
    (128256, 50257)

    Raises:
        ValueError: there is no preset of this name.
    """
    fields = load_preset(name)
    return msgspec.convert(fields, config_type(fields))


def gpt_preset(name: str) -> GptConfig:
    """Return the configuration of a preset for what knows the layers of a GPT alone.

    Raises:
        ValueError: there is no preset of this name, or it is of another family.
    """
    config = preset_config(name)
    if not isinstance(config, GptConfig):
        raise ValueError(
            f"only the layers of a GPT are known here: {name!r} is of the family "
            f"{config.family!r}; name a GPT, such as gpt2"
        )
    return config
