"""The names that connect the models of `jaxpipe.models` with their duplex graph.

A pair of layers of a model with experts is two layers of the graph: the dense one has an even
number. Norms, positions and biases that are added after a sum are replicated.
"""

from jaxpipe.baselines.autoshard.duplex_step import ModelNames, ParameterLabels
from jaxpipe.models import GptConfig

_ATTENTION = {
    "attention.qkv.kernel": ("qkv", "dih"),
    "attention.project.kernel": ("project", "hd"),
}
_MLP = {
    "mlp.up.kernel": ("up", "df"),
    "mlp.up.bias": ("up", "f"),
    "mlp.down.kernel": ("down", "fd"),
}
_MIXTURE = {
    "moe.router": ("router", "de"),
    "moe.up": ("up", "edf"),
    "moe.down": ("down", "efd"),
}
_ATTENTION_SCOPES = ("qkv", "attention", "project", "add1")
_DENSE_SCOPES = (*_ATTENTION_SCOPES, "up", "down", "add2")
_SPARSE_SCOPES = (*_ATTENTION_SCOPES, "router", "dispatch", "up", "down", "combine", "add2")


def model_names(config: GptConfig) -> ModelNames:
    """Return the names of a model.

    >>> config = GptConfig(num_layers=1, dim=8, num_heads=2, sequence=8, vocabulary=16, experts=4)
    >>> names = model_names(config)
    >>> names.scopes["layer1.dispatch"], names.parameter("state.params.blocks.0.sparse.moe.up")
    (('layer0', 'sparse', 'dispatch'), ParameterLabels(operator='layer1.up', labels='edf'))
    """
    scopes: dict[str, tuple[str, ...]] = {"embed": ("embed",), "head": ("head",)}
    table = "embed.kernel" if config.patch else "embed.tokens"
    parameters = {table: ParameterLabels(operator="embed", labels="rd")}
    if not config.tied:
        parameters["head.kernel"] = ParameterLabels(operator="head", labels="vd")
    for layer in range(config.num_layers):
        for number, part, is_sparse in _parts(layer, has_experts=config.experts > 0):
            words = [f"layer{layer}", *filter(None, [part])]
            for name in _SPARSE_SCOPES if is_sparse else _DENSE_SCOPES:
                scopes[f"layer{number}.{name}"] = (*words, name)
            path = ".".join(["blocks", str(layer), *filter(None, [part])])
            for end, (name, labels) in (_ATTENTION | (_MIXTURE if is_sparse else _MLP)).items():
                parameters[f"{path}.{end}"] = ParameterLabels(
                    operator=f"layer{number}.{name}", labels=labels
                )
    return ModelNames(scopes=scopes, parameters=parameters)


def _parts(layer: int, *, has_experts: bool) -> tuple[tuple[int, str, bool], ...]:
    """Return of each layer of the graph its number, its part of the pair and if it has experts."""
    if not has_experts:
        return ((layer, "", False),)
    return ((2 * layer, "dense", False), (2 * layer + 1, "sparse", True))
