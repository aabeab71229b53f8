"""The families of models and the presets; without jax.

====================  =============================================================  ==============
family                models                                                         configuration
====================  =============================================================  ==============
`gpt` (left out)      GPT-2, encoders, vision transformers, mixtures of experts      `GptConfig`
`llama`               Llama, Qwen 2 and 3, Mistral, Gemma 1 to 3, Phi 3 and 4,        `LlamaConfig`
                      OLMo 2, Granite, SmolLM 3, Mixtral, Qwen 3 MoE
====================  =============================================================  ==============

An installed package adds a family by an entry point of the group `jaxpipe_families`, whose name is
that of the family and whose object is its record (`jaxpipe.models.family.Family`). Presets are one
TOML file each in `presets/`, with the fields of a configuration.
"""

import difflib
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jaxpipe.models import gpt_costs, llama_costs
from jaxpipe.models.family import Family, ModelConfig
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.moe.routing import Routing

if TYPE_CHECKING:  # it imports jax, for which planners need not wait
    from jaxpipe.models.transformer import Transformer

FAMILY: Final = "family"
"""The field that names the family, in TOML and in checkpoints; without it, a model is a GPT."""

_GROUP: Final = "jaxpipe_families"


def _gpt(config: GptConfig) -> "Transformer":
    from jaxpipe.models.gpt import Gpt

    return Gpt(config)


def _llama(config: LlamaConfig) -> "Transformer":
    from jaxpipe.models.llama import Llama

    return Llama(config)


GPT: Final = Family(name="gpt", config=GptConfig, costs=gpt_costs, build=_gpt)
LLAMA: Final = Family(
    name="llama",
    config=LlamaConfig,
    costs=llama_costs,
    build=_llama,
    heads=("num_heads", "num_kv_heads"),
)

FAMILIES: Final = (GPT, LLAMA)


@cache  # an entry point is looked up in the files of all installed packages
def family_named(name: str) -> Family:
    """Return a family of this package, or of another installed one.

    Raises:
        ValueError: there is no such family, or an entry point is none.

    >>> family_named("llama").config.__name__
    'LlamaConfig'
    """
    for family in FAMILIES:
        if family.name == name:
            return family
    for point in entry_points(group=_GROUP, name=name):
        family = point.load()
        if not isinstance(family, Family) or family.name != name:
            raise ValueError(
                f"`{FAMILY}` {name!r:.80} must be a `Family` of this name in {point.value}, "
                f"not {family!r:.80}"
            )
        return family
    raise _unknown(name)


def _unknown(name: object) -> ValueError:
    choices = [*(f.name for f in FAMILIES[1:]), *sorted(entry_points(group=_GROUP).names)]
    return ValueError(
        f"`{FAMILY}` must be {' or '.join(choices)}, or left out for a GPT, not {name!r:.80}"
    )


def family_of(config: ModelConfig) -> Family:
    """Return the family of a configuration.

    Raises:
        ValueError: it is the configuration of no family.

    >>> sizes = dict(num_layers=1, dim=8, num_heads=2, sequence=8, vocabulary=16)
    >>> family_of(GptConfig(**sizes)).name
    'gpt'
    """
    family = family_named(getattr(config, FAMILY, GPT.name))
    if not isinstance(config, family.config):
        raise ValueError(
            f"`{FAMILY}` {family.name!r} must have a `{family.config.__name__}`, not a "
            f"`{type(config).__name__}`, which is the configuration of no family"
        )
    return family


def config_type(fields: Mapping[str, Any]) -> type[Any]:
    """Return the type of the configuration that has these fields.

    Raises:
        ValueError: there is no such family.

    >>> config_type({"family": "llama"}).__name__, config_type({}).__name__
    ('LlamaConfig', 'GptConfig')
    """
    family = fields.get(FAMILY, GPT.name)
    if not isinstance(family, str):
        raise _unknown(family)
    return family_named(family).config


def experts_are_by_token(config: ModelConfig) -> bool:
    """Return whether no other token changes what experts do with one; true without experts.

    >>> sizes = dict(num_layers=1, dim=8, num_heads=2, sequence=8, vocabulary=16, experts=2)
    >>> experts_are_by_token(GptConfig(**sizes))
    False
    """
    routing: Routing | None = getattr(config, "routing", None)  # other families may have none
    return routing is None or routing.is_by_token


def layer_config(config: ModelConfig, number: int) -> ModelConfig:
    """Return the configuration whose layers all are as the one of this number: itself, if they are.

    >>> sizes = dict(num_layers=1, dim=8, num_heads=2, sequence=8, vocabulary=16)
    >>> layer_config(GptConfig(**sizes), 0) == GptConfig(**sizes)
    True
    """
    of_layer = getattr(config, "of_layer", None)  # layers of other families are equal
    return config if of_layer is None else of_layer(number)


def build_model(config: ModelConfig) -> "Transformer":
    """Return the model of a configuration; it holds no parameters. Imports jax.

    Raises:
        ValueError: it is the configuration of no family.
    """
    return family_of(config).build(config)


def presets() -> list[str]:
    """Return the names of all presets, sorted.

    >>> "gpt2-medium" in presets()
    True
    """
    names = (entry.name for entry in _folder().iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def load_preset(name: str) -> dict[str, Any]:
    """Return the fields that a preset sets; all others keep their defaults.

    Raises:
        ValueError: there is no preset of this name.

    >>> load_preset("tiny")["vocabulary"]
    256
    """
    choices = presets()
    if name not in choices:
        nearest = difflib.get_close_matches(name, choices, n=1, cutoff=0)[0]
        raise ValueError(
            f"`preset` must be a known name, not {name!r}; the nearest is {nearest!r}, "
            f"the choices are {', '.join(choices)}"
        )
    # A listed name: no path leaves the folder.
    return tomllib.loads((_folder() / f"{name}.toml").read_text(encoding="utf-8"))


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
            f"{name!r} is of the family {family_of(config).name!r}, and only the layers of a GPT "
            "are known here; name a GPT, such as gpt2"
        )
    return config


def _folder() -> Traversable:
    return files("jaxpipe.models") / "presets"
