"""The named points of a run at which a rank is killed."""

from enum import StrEnum


class Point(StrEnum):
    """The point at which a rank is killed, in the order in which a step reaches them."""

    COMPILE = "compile"
    """While a rank compiles its stages."""
    FIRST_FORWARD = "first-forward"
    """All stages are compiled, and nothing is computed yet."""
    FORWARD = "forward"
    BEFORE_SEND = "before-send"
    AFTER_SEND = "after-send"
    """A message has been passed to MPI, and may be in flight."""
    RECEIVE = "receive"
    BACKWARD_INPUT = "backward-input"
    BACKWARD_WEIGHT = "backward-weight"
    GRADIENT_SUM = "gradient-sum"
    SCALAR_SUM = "scalar-sum"
    UPDATE = "update"
    HELD_OUT = "held-out"
    """In the held-out loss."""
    BEFORE_SHARDS = "before-shards"
    """A save has begun, and no rank has written its shards."""
    BEFORE_MANIFEST = "before-manifest"
    """All shards are written, and no manifest."""
    BEFORE_RENAME = "before-rename"
    """The manifest is written, and the checkpoint not committed."""
    AFTER_COMMIT = "after-commit"
    """Committed, and older ones not yet removed."""
    PRUNE = "prune"
    """An older checkpoint has lost its manifest, and not its shards."""

    @property
    def is_of_rank_0(self) -> bool:
        """Whether only rank 0 reaches it: rank 0 then kills the victim."""
        return self in (
            Point.BEFORE_MANIFEST,
            Point.BEFORE_RENAME,
            Point.AFTER_COMMIT,
            Point.PRUNE,
        )
