"""Fragments of the parameters, which take their outer steps at different times.

::

    one fragment     everything
    four fragments   0: what belongs to no layer (embeddings, final norm, head)
                     1: layers 0, 3, 6, ...    2: layers 1, 4, 7, ...    3: layers 2, 5, 8, ...

Layers are strided, so that each fragment has early and late ones. The fragment follows from the
name of a tensor alone, hence neither from the partition of layers into stages nor from a rank.

Source: "Streaming DiLoCo", arXiv 2501.18512, section 2.1: strided layers, embeddings apart.
"""

from collections.abc import Iterable

from jaxpipe.errors import ConfigError

_BLOCKS = "blocks"


def fragment_of(name: str, *, num_fragments: int) -> int:
    """Return the fragment of a tensor, by its name in a checkpoint.

    >>> [fragment_of(name, num_fragments=4) for name in ("embed.tokens", "blocks.5.mlp.up")]
    [0, 3]
    """
    first, _, rest = name.partition(".")
    if num_fragments == 1 or first != _BLOCKS:
        return 0
    layer = int(rest.partition(".")[0])
    return 1 + layer % (num_fragments - 1)


def fragments(names: Iterable[str], *, num_fragments: int) -> tuple[tuple[str, ...], ...]:
    """Return the names of each fragment, in the order given; of a single stage some may be empty.

    >>> fragments(("embed.tokens", "blocks.0.up", "blocks.1.up"), num_fragments=3)
    (('embed.tokens',), ('blocks.0.up',), ('blocks.1.up',))
    """
    names_of: list[list[str]] = [[] for _ in range(num_fragments)]
    for name in names:
        names_of[fragment_of(name, num_fragments=num_fragments)].append(name)
    return tuple(map(tuple, names_of))


def check_fragments(num_fragments: int, *, num_layers: int) -> None:
    """Check that no fragment of a whole model is empty.

    Raises:
        ConfigError: there are more fragments of layers than layers.
    """
    if num_fragments > num_layers + 1:
        raise ConfigError(
            f"`outer.fragments` ({num_fragments}) must be at most {num_layers + 1}: each fragment "
            f"but the first has one of the {num_layers} layers"
        )
