"""What stands on a message: from whom, to whom, with which tag, how many bytes."""

from dataclasses import dataclass

from jaxpipe.comm.tags import LARGEST_TAG
from jaxpipe.errors import DeadlineError


@dataclass(frozen=True, slots=True)
class Envelope:
    """The address and the size of one message.

    >>> str(Envelope(source=0, to=3, tag=7, num_bytes=16))
    '16 bytes from rank 0 to rank 3 with tag 7'
    """

    source: int
    to: int
    tag: int
    num_bytes: int

    def __post_init__(self):
        assert self.source >= 0, self.source
        assert self.to >= 0, self.to
        assert 0 <= self.tag <= LARGEST_TAG, f"tag {self.tag} is outside 0 .. {LARGEST_TAG}"

    def __str__(self) -> str:
        return (
            f"{self.num_bytes} bytes from rank {self.source} to rank {self.to} with tag {self.tag}"
        )

    @property
    def channel(self) -> tuple[int, int, int]:
        """The key under which messages keep their order: source, receiver and tag."""
        return self.source, self.to, self.tag

    def late(self, *, waited_s: float) -> DeadlineError:
        """Return the error of a wait for this message that timed out after `waited_s`."""
        return DeadlineError(f"timed out after {waited_s:.1f} s waiting for {self}")
