"""Rematerialisation: what a stage keeps of its forward."""

from enum import StrEnum


class Remat(StrEnum):
    """What a stage keeps of the forward of each layer; its backward computes the rest again."""

    NONE = "none"
    """Keeps everything that the backward reads: the most memory, the least work."""
    DOTS = "dots"
    """Keeps the results of matrix products with weights, and the attention output."""
    FULL = "full"
    """Keeps only the input of the layer: the least memory, one more forward."""
