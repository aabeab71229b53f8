"""The methods of compression by their time to a loss, and which of them is first."""

from dataclasses import dataclass

from jaxpipe.plan import Plan
from jaxpipe.propose.boundary_codecs import ENOUGH
from jaxpipe.propose.loss_prices import Gap
from jaxpipe.propose.proposal import Proposal
from jaxpipe.topo import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A way to reach the loss: its plan, what else the configuration needs, and its price.

    `step_s` are the simulated seconds of a step on average, `compute_factor` the steps that it
    needs for one of uncompressed training, by how much higher its loss is (`gap`; None without a
    price). Without islands, it has the proposal.
    """

    name: str
    plan: Plan
    cluster: Cluster
    step_s: float
    settings: tuple[str, ...] = ()
    compute_factor: float = 1.0
    gap: Gap | None = None
    proposal: Proposal | None = None

    @property
    def equal_loss_s(self) -> float:
        """The seconds in which it advances as far as an uncompressed step does."""
        return self.compute_factor * self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LossProposal:
    """All methods that are possible, the gentlest first, and why others are not."""

    methods: tuple[Method, ...]
    refusals: tuple[tuple[str, str], ...]
    steps: int
    num_valued: int
    notices: tuple[str, ...]

    @property
    def best(self) -> Method:
        """The gentlest of the methods within 1 % of the first to the loss."""
        first_s = min(method.equal_loss_s for method in self.methods)
        return next(m for m in self.methods if m.equal_loss_s <= ENOUGH * first_s)

    @property
    def by_time(self) -> tuple[Method, ...]:
        """All methods, the first to the loss first."""
        return tuple(sorted(self.methods, key=lambda method: method.equal_loss_s))

    def seconds(self, method: Method) -> float:
        """Return the seconds from the first step to the loss."""
        return self.steps * method.equal_loss_s
