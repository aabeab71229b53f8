"""What compression costs in loss, as far as it was measured or published.

::

    codec            model of 0.84 M parameters, 120 steps       `experiments/codecs`
    rank             the same model, 500 steps, three seeds; a   `experiments/low_rank`
                     model of 14 M, 1,000 steps, one seed
    outer loop       35 M to 2.4 B parameters                    arXiv 2503.09799, `loss_law`

A gap is how much higher the loss is, as a fraction. That of a codec is with it on all messages of
its kind; bf16, int8 and fp8 cost no more than another seed does, and count as nothing. Codecs were
not measured for larger models: their gaps are those of the small one, and say so. Ranks have the
gap of the nearest size.
"""

from dataclasses import dataclass
from math import log

from jaxpipe.collective import CodecKind, Codecs
from jaxpipe.models import ModelConfig, num_parameters
from jaxpipe.models.bottleneck_costs import bottlenecks_of
from jaxpipe.outer.loss_law import loss_price

BOUNDARY_GAPS = {CodecKind.INT4: 0.006, CodecKind.ROTATED3: 0.005}
GRADIENT_GAPS = {CodecKind.INT4: 0.003, CodecKind.ROTATED3: 0.0, CodecKind.TOP_K: 0.23}
"""Top-k of 1 and of 10 %, in a run too short for it."""
_SMALL = "measured for 0.84 M parameters"
RANK_GAPS = {
    0.84e6: {1: 0.0, 8: 0.008, 16: 0.015, 32: 0.013, 64: 0.049},
    14.4e6: {1: 0.0, 16: 0.099, 64: 0.099, 128: 0.099},
}
"""By the parameters of a model, then by the numbers of a token over those that a boundary keeps.

One seed tells the ranks of the larger model not apart: all count as the one with the highest loss.
"""
_RANK_BASES = {0.84e6: _SMALL, 14.4e6: "measured for 14 M parameters, one seed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """How much higher a loss is, as a fraction, and where that is from."""

    fraction: float
    basis: str

    def __str__(self) -> str:
        """Return the gap in per cent, with its basis.

        >>> print(Gap(fraction=0.013, basis="published"))
        +1.3 % of loss (published)
        """
        return f"+{100 * self.fraction:.2g} % of loss ({self.basis})"


NO_GAP = Gap(fraction=0.0, basis="none was seen for 0.84 M parameters")


def codec_gap(codecs: Codecs) -> Gap:
    """Return the gap of codecs, of boundaries and gradients together.

    >>> print(codec_gap(Codecs(boundary=CodecKind.INT4)))
    +0.6 % of loss (measured for 0.84 M parameters)
    """
    boundary = BOUNDARY_GAPS.get(codecs.boundary, 0.0)
    fraction = boundary + GRADIENT_GAPS.get(codecs.gradients, 0.0)
    return Gap(fraction=fraction, basis=_SMALL) if fraction else NO_GAP


def rank_gap(model: ModelConfig) -> Gap | None:
    """Return the gap of a model's bottlenecks, that of the narrowest one; None without any.

    The nearest size counts that was measured. Between measured ratios the next narrower one
    counts, beyond them the narrowest.

    >>> from jaxpipe.models import GptConfig
    >>> sizes = dict(num_layers=2, dim=64, num_heads=2, sequence=16, vocabulary=32)
    >>> print(rank_gap(GptConfig(**sizes, bottlenecks=((1, 4),))))
    +1.5 % of loss (measured for 0.84 M parameters)
    """
    ranks = [rank for _, rank in bottlenecks_of(model)]
    if not ranks:
        return None
    ratio = model.dim / min(ranks)
    nearest = _nearest_size(model)
    gaps = RANK_GAPS[nearest]
    measured = next((known for known in sorted(gaps) if known >= ratio), max(gaps))
    beyond = ", beyond what was measured" if ratio > measured else ""
    return Gap(fraction=gaps[measured], basis=_RANK_BASES[nearest] + beyond)


def rank_ratios(model: ModelConfig) -> tuple[int, ...]:
    """Return the measured numbers of a token over those kept, for the nearest size of a model."""
    return tuple(sorted(RANK_GAPS[_nearest_size(model)]))


def _nearest_size(model: ModelConfig) -> float:
    size = num_parameters(model, layers=model.num_layers, embed=True, head=True)
    return min(RANK_GAPS, key=lambda parameters: abs(log(parameters / size)))


def outer_gap(islands: int, *, num_parameters: float) -> Gap | None:
    """Return the gap of islands; None for more of them than were published.

    >>> print(outer_gap(8, num_parameters=1.3e9))
    +1.3 % of loss (published for every 30 steps)
    """
    price = loss_price(num_parameters=num_parameters, islands=islands)
    if price is None:
        return None
    nearest = "" if price.is_published else ", of the nearest size"
    return Gap(fraction=price.gap, basis=f"published for every 30 steps{nearest}")
