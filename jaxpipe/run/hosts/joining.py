"""Judge the hosts that ask to join, while the ranks run.

::

    request ─► same versions? in the cluster? new? ─► a sign of life ─► a plan that uses it
                        └ no: refused                     └ none: refused    ├─► the run stops
                                                                             └ none: it stands by
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from jaxpipe.errors import UserError, printable
from jaxpipe.run.hosts.join_desk import JoinDesk
from jaxpipe.run.hosts.join_words import AnswerKind, JoinRequest
from jaxpipe.run.hosts.placed_job import SignOfLife, Starter
from jaxpipe.run.supervise.planner import Planned, Planner
from jaxpipe.topo.names import is_host_name


@dataclass(slots=True, kw_only=True)
class Joining:
    """The hosts that are there, of which some may stand by, and those that have asked to join.

    `accepted` are those for which the run has to stop; `waiting` those whose first step is still to
    be announced; `known` all that ever were there. `show` prints a line. A host has `answer_s` to
    start a process.
    """

    desk: JoinDesk
    planner: Planner
    start: Starter
    versions: str
    there: list[str]
    show: Callable[[str], object]
    answer_s: float = 15.0
    accepted: list[str] = field(default_factory=list[str])
    waiting: list[str] = field(default_factory=list[str])
    known: list[str] = field(default_factory=list[str])
    _asked: dict[str, SignOfLife] = field(default_factory=dict[str, SignOfLife])

    def __post_init__(self) -> None:
        """Note the hosts that are there."""
        self.known += self.there

    def poll(self, plan: Planned) -> None:
        """Take requests, and decide on those of hosts that have shown a sign of life."""
        for request in self.desk.poll():
            self._take(request)
        for host, asked in tuple(self._asked.items()):
            alive = asked.poll(timeout_s=self.answer_s)
            if alive is None:
                continue
            del self._asked[host]
            if alive:
                self._decide(host, plan)
            else:
                self._refuse(
                    host,
                    f"a host that joins can be reached over ssh: `mpirun` starts no process on "
                    f"{host} within {self.answer_s:g} s; try `ssh {host} true` on the host "
                    "of the run",
                )

    def announce(self, plan: Planned, *, step: int) -> None:
        """Say that the hosts that wait take part from this step on, as far as the plan has them."""
        for host in self.waiting:
            if host not in plan.used:
                self._refuse(host, f"the run went on without {host}, which was gone; join again")
                continue
            line = f"{host} takes part from step {step} on: {plan}"
            self.desk.answer(host, AnswerKind.JOINED, line)
            self.show(line)
        self.waiting.clear()

    def admit(self) -> None:
        """Count the accepted hosts among those that are there."""
        self.there += self.accepted
        self.waiting += self.accepted
        self.accepted.clear()
        self.known += [host for host in self.there if host not in self.known]

    def close(self) -> None:
        """End all that is under way."""
        for asked in self._asked.values():
            asked.stop()
        self.desk.close()

    def _take(self, request: JoinRequest) -> None:
        host = request.host
        if not is_host_name(host):
            self._refuse(host, f"a host is called by its name in the cluster, not {host!r:.80}")
        elif request.versions != self.versions:
            self._refuse(
                host,
                "all hosts of a run have the same software: "
                f"{host} has {request.versions:.200}, the run {self.versions}; install the same",
            )
        elif host in (*self.there, *self.accepted):
            self._refuse(host, f"a host joins once: {host} is a part of the run already")
        elif host not in self._asked:
            try:
                self.planner.plan_for([*self.there, *self.accepted, host])
            except UserError as error:
                self._refuse(host, str(error))
            else:
                self._asked[host] = SignOfLife(self.start, host)

    def _decide(self, host: str, plan: Planned) -> None:
        try:
            found = self.planner.plan_for([*self.there, *self.accepted, host])
        except UserError as error:
            self._refuse(host, str(error))
            return
        if found is None or host not in found.used:
            self.there.append(host)
            line = f"{host} stands by: no plan with it is faster than {plan}"
            self.desk.answer(host, AnswerKind.JOINED, line)
            self.show(line)
            return
        self.accepted.append(host)
        line = f"{host} joins: the run stops after its step, and continues as {found}"
        self.desk.answer(host, AnswerKind.WAIT, line)
        self.show(line)

    def _refuse(self, host: str, why: str) -> None:
        self.desk.answer(host, AnswerKind.REFUSED, why)
        self.show(f"{printable(host):.80} does not join: {printable(why)}")
