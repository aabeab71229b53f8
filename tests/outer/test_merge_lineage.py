"""From the log alone follows what each delivery was trained from, through kills and restarts."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.collective import CodecKind
from jaxpipe.outer.merge_lineage import Lineage, Origin, Stretch, lineage_of
from jaxpipe.outer.merge_log import Began, First, Given, Merge, MergedIsland, MergeEvent

ISLANDS = 3
History = tuple[int, ...]
"""Of a state: for each inner step, the event that has made the anchor it was trained from."""


def began(anchor: int = 0, digest: str = "") -> Began:
    return Began(
        anchor=anchor,
        digest=digest,
        islands=ISLANDS,
        learning_rate=0.7,
        momentum=0.9,
        discount=0.5,
        codec=CodecKind.NONE,
        batch=8,
        seed=0,
        versions="1",
    )


def gave(island: int, *, anchor: int = 0, step: int = 0, joined: bool = False) -> Given:
    return Given(island=island, anchor=anchor, step=step, joined=joined)


def part(island: int, *, base: int = 0, step: int, steps: int) -> MergedIsland:
    return MergedIsland(
        island=island, base=base, step=step, steps=steps, tokens=1.0, digest="d", weight=1.0
    )


def merge(anchor: int, *parts: MergedIsland) -> Merge:
    return Merge(anchor=anchor, digest=f"digest {anchor}", islands=parts)


@dataclass(slots=True)
class Run:
    """A run of an island: what it has trained, since which anchor, and its checkpoint."""

    history: History = ()
    start: int = 0
    base: int = 0
    made_by: int = 0
    is_there: bool = False
    waits: bool = False
    saved: History = ()


@dataclass(slots=True)
class World:
    """A server with islands, which writes a log, and remembers what is not in it."""

    events: list[MergeEvent] = field(default_factory=lambda: [began(), First(island=0, digest="0")])
    runs: list[Run] = field(default_factory=lambda: [Run() for _ in range(ISLANDS)])
    pending: dict[int, tuple[MergedIsland, History]] = field(default_factory=dict)
    anchors: dict[int, tuple[int, str]] = field(default_factory=lambda: {0: (1, "0")})
    version: int = 0
    merged: dict[int, int] = field(default_factory=dict)
    delivered: dict[int, dict[int, History]] = field(default_factory=dict)

    def give(self, number: int, *, joined: bool) -> None:
        run = self.runs[number]
        step = len(run.history)
        self.events.append(gave(number, anchor=self.version, step=step, joined=joined))
        run.start, run.base, run.made_by = step, self.version, self.anchors[self.version][0]
        run.waits = False

    def act(self, kind: str, number: int) -> None:
        run = self.runs[number]
        if kind == "join" and not run.is_there:
            run.is_there, run.history = True, run.saved
            self.give(number, joined=True)
        elif kind == "train" and run.is_there and not run.waits:
            run.history += (run.made_by,)
        elif kind == "save" and run.is_there and not run.waits:
            run.saved = run.history
        elif kind == "kill":
            run.is_there = run.waits = False  # what it has delivered stays
        elif kind == "deliver" and run.is_there and not run.waits:
            self.deliver(number)
        elif kind == "merge" and self.pending:
            self.merge()
        elif kind == "restart":
            self.restart(number % (self.version + 1))

    def deliver(self, number: int) -> None:
        run = self.runs[number]
        step = len(run.history)
        if run.base > self.version or run.base <= self.merged.get(number, -1):
            self.give(number, joined=False)  # it is lost, or in an anchor already
            return
        run.waits = True
        mine = part(number, base=run.base, step=step, steps=step - run.start)
        self.pending[number] = (mine, run.history)

    def merge(self) -> None:
        self.version += 1
        self.delivered[len(self.events)] = {n: h for n, (_, h) in self.pending.items()}
        event = merge(self.version, *(p for p, _ in self.pending.values()))
        self.anchors[self.version] = (len(self.events), event.digest)
        self.events.append(event)
        for number, (mine, _) in self.pending.items():
            self.merged[number] = mine.base
            if self.runs[number].waits:
                self.give(number, joined=False)
            elif not self.runs[number].is_there:  # the server has not seen that it is gone
                self.events.append(gave(number, anchor=self.version, step=mine.step))
        self.pending.clear()

    def restart(self, anchor: int) -> None:
        """Start the server again from an older anchor; islands deliver again, or lose it."""
        if anchor == 0:
            return  # then no island could connect again
        self.version = anchor
        self.events.append(began(anchor, self.anchors[anchor][1]))
        self.pending.clear()
        self.merged.clear()
        for number, run in enumerate(self.runs):
            if run.waits:
                run.waits = False
                self.deliver(number)


def history_of(lineage: Lineage, made_by: dict[int, int], number: int, step: int) -> History:
    stretch, origin = lineage.stretches[number], lineage.stretches[number].origin
    before = () if origin is None else history_of(lineage, made_by, origin.stretch, origin.step)
    assert len(before) == stretch.start
    assert step <= stretch.end
    return before + (made_by[number],) * (step - stretch.start)


@settings(max_examples=500)
@given(
    actions=st.lists(
        st.tuples(
            st.sampled_from(
                ["join", "train", "train", "train", "save", "deliver", "merge", "kill", "restart"]
            ),
            st.integers(0, ISLANDS - 1),
        ),
        max_size=80,
    )
)
def test_each_delivery_has_the_history_that_its_island_had(actions: list[tuple[str, int]]) -> None:
    world = World()
    for kind, number in actions:
        world.act(kind, number)
    lineage = lineage_of(world.events)
    newest: dict[int, int] = {}
    made_by: dict[int, int] = {}
    for event_number, event in enumerate(world.events):
        if isinstance(event, First):
            newest[0] = event_number
        elif isinstance(event, Given):
            made_by[lineage.given[event_number]] = newest[event.anchor]
        elif isinstance(event, Merge):
            newest[event.anchor] = event_number
            for merged, number in zip(event.islands, lineage.merged[event_number], strict=True):
                history = history_of(lineage, made_by, number, merged.step)
                assert history == world.delivered[event_number][merged.island]


def test_an_island_that_joins_continues_the_stretch_of_its_checkpoint() -> None:
    lineage = lineage_of(
        [
            began(),
            First(island=1, digest="0"),
            gave(1, joined=True),
            merge(1, part(1, step=10, steps=10)),
            gave(1, anchor=1, step=10),
            gave(1, anchor=1, step=5, joined=True),  # killed, with a checkpoint of step 5
            merge(2, part(1, base=1, step=9, steps=4)),
        ]
    )
    assert lineage.stretches == [
        Stretch(island=1, anchor=0, start=0, end=10, origin=None, delivered=10),
        Stretch(island=1, anchor=1, start=10, end=10, origin=Origin(stretch=0, step=10)),
        Stretch(island=1, anchor=1, start=5, end=9, origin=Origin(stretch=0, step=5), delivered=9),
    ]
    assert lineage.merged == {3: (0,), 6: (2,)}


START = (began(), First(island=0, digest="0"), gave(0, joined=True))


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([First(island=0, digest="0")], "line 1: `kind` must be `began` in the first line"),
        ([began(3, "x")], "line 1: `anchor` is 3, which no line before has made"),
        ([*START, began(1, "x")], "line 4: `anchor` is 1, which no line"),
        (
            [*START, First(island=0, digest="0")],
            "`kind` must not be `first` after anchor 0",
        ),
        ([began(), gave(0, joined=True)], "line 2: `anchor` is 0, and none is due"),
        ([*START, merge(2, part(0, step=1, steps=1))], "line 4: `anchor` is 2, and 1 is due"),
        ([*START, merge(1, part(0, base=1, step=1, steps=1))], "`base` must be an anchor before 1"),
        ([*START, merge(1, part(0, step=3, steps=2))], "from anchor 0 after step 1, and no line"),
        ([*START, merge(1, part(1, step=2, steps=2))], "island 1 delivers what it has learned"),
        ([*START, gave(3, joined=True)], "line 4: `island` is 3, and must be below 3"),
        ([*START, gave(1)], "line 4: island 1 is given an anchor, and has not joined"),
        ([*START, gave(1, step=4, joined=True)], "island 1 has done 4 inner steps, and no line"),
        ([*START, gave(0, step=-1, joined=True)], "`step` is -1"),
        ([*START[:2], gave(0, step=4, joined=True)], "`step` is 4, and must be 0 for island 0"),
    ],
)
def test_a_log_that_tells_no_run_is_refused(events: list[MergeEvent], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        lineage_of(events)
