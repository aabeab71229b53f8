"""The inputs of labelled samples: what a stage is compiled for where they are no windows of tokens.

::

    tokens             inputs (microbatch, sequence)            targets (microbatch, sequence)
    labelled text      inputs (microbatch, sequence)            targets (microbatch,)
    labelled pictures  inputs (microbatch, side, side, values)  targets (microbatch,)
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class InputShape:
    """The shape and dtype of the input of one labelled sample.

    >>> InputShape.of_model(picture=(32, 32, 3), sequence=65)
    InputShape(shape=(32, 32, 3), dtype='uint8')
    >>> InputShape.of_model(picture=None, sequence=65)
    InputShape(shape=(65,), dtype='int32')
    """

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of_model(cls, *, picture: tuple[int, int, int] | None, sequence: int) -> "InputShape":
        """Return the input of a model of pictures, or of a sequence of tokens."""
        if picture is not None:
            return cls(shape=picture, dtype="uint8")
        return cls(shape=(sequence,), dtype="int32")
