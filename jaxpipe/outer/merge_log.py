"""The log of a merge server: in their order, the events that decide the bits of its anchors.

::

    began    the server starts, with these settings; from anchor 0, or from a saved one
    first    the parameters of this island are anchor 0
    given    this island received this anchor after `step` inner steps; `joined`: at its start
    merged   a round has ended: these deliveries are in the next anchor, with these weights

An island that joins has the moments of its checkpoint, which it wrote some steps before it went.
The log does not have them, but tells the steps that lead to them: see `merge_lineage`.
"""

from typing import Final

import msgspec

from jaxpipe.collective import CodecKind

MERGE_LOG_FORMAT: Final = 1
"""The format number of the log, in each `Began`."""


class _Event(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True
):
    """A line of the log."""


class Began(_Event, frozen=True, kw_only=True, tag="began"):
    """The server starts from an anchor; `digest` is empty for anchor 0, which an island brings.

    `islands` to `codec` are fields of `[quorum]`; `versions` is what wrote the log.
    """

    anchor: int
    digest: str
    islands: int
    learning_rate: float
    momentum: float
    discount: float
    codec: CodecKind
    batch: int
    seed: int
    versions: str
    format: int = MERGE_LOG_FORMAT


class First(_Event, frozen=True, kw_only=True, tag="first"):
    """The parameters of an island are anchor 0, of this SHA-256."""

    island: int
    digest: str


class Given(_Event, frozen=True, kw_only=True, tag="given"):
    """An island continues from an anchor when its run has done `step` inner steps.

    `joined` says that its process has begun, with the moments of its checkpoint of that step.
    """

    island: int
    anchor: int
    step: int
    joined: bool


class MergedIsland(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of an island in a merge.

    It is what `steps` inner steps since the anchor `base` have learned, the last of which was step
    number `step` of its run; `digest` is the SHA-256 of the delivery, and `weight` is what it was
    multiplied with.
    """

    island: int
    base: int
    step: int
    steps: int
    tokens: float
    digest: str
    weight: float


class Merge(_Event, frozen=True, kw_only=True, tag="merged"):
    """A merge has made an anchor, of this SHA-256, of these deliveries."""

    anchor: int
    digest: str
    islands: tuple[MergedIsland, ...]


MergeEvent = Began | First | Given | Merge
