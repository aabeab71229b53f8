"""Scale of an emulation: the size of its messages, and the speed of its clock."""

from dataclasses import dataclass, replace

from jaxpipe.errors import ConfigError
from jaxpipe.simulate.engine.step_model import StepModel

_FITTING_BYTES = 2048
"""A message of this size is sent eagerly by any MPI, without a rendezvous."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The scale that makes an emulation fit the machine.

    A message is `message` times as large as the one that it stands for, and the bandwidth of links
    is scaled alike; None: the largest message has 2 KiB. Every emulated second takes `time`
    seconds: sleeps, latencies and transfers alike; results are in emulated seconds.

    Raises:
        ConfigError: a number is out of its range.
    """

    message: float | None = None
    time: float = 1.0

    def __post_init__(self) -> None:
        for field in ("message", "time"):
            value = getattr(self, field)
            if value is not None and not value > 0:
                raise ConfigError(f"`{field}` must be above 0, not {value}")

    def fitted(self, job: StepModel) -> "Scale":
        """Return the scale with `message` filled in for a job, at most 1."""
        if self.message is not None:
            return self
        parts = (
            transfer.num_bytes for collective in job.all_collectives for transfer in collective
        )
        # At least that: small messages need no scale, and none may grow.
        largest = max(job.largest_message_bytes, *parts, _FITTING_BYTES)
        return replace(self, message=_FITTING_BYTES / largest)

    def num_bytes(self, meant: float) -> int:
        """Return the bytes of a message that stands for `meant` bytes; at least 1 unless that is 0.

        >>> scale = Scale(message=1 / 4096)
        >>> scale.num_bytes(8 * 2**20), scale.num_bytes(1), scale.num_bytes(0)
        (2048, 1, 0)
        """
        return max(1, round(meant * self._message)) if meant > 0 else 0

    def meant(self, num_bytes: int) -> float:
        """Return the bytes for which a message of `num_bytes` stands."""
        return num_bytes / self._message

    @property
    def _message(self) -> float:
        assert self.message is not None, "fit the scale to a job first"
        return self.message
