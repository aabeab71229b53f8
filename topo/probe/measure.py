"""Measures the network between the ranks of an MPI job, by small and by large messages.

A small message goes to and fro: half of the time is the latency, in either direction. A quarter of
a large one goes, and an empty one comes back; then four such quarters go at once. The bandwidth is
three quarters over the difference of the two: MPI lets a large message wait until its receiver has
agreed, one more round trip, and that is in both.

What hosts and regions move over all of their pairs together, pairs that stream for the same seconds
tell: bursts that begin and end at their own times would each have alone what they should share.
"""

import json
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, replace

import mpi4py
import numpy as np

from jaxpipe.topo.host_tcp import TcpSettings, read_tcp_settings
from jaxpipe.topo.probe.measurements import (
    Measurements,
    NicSample,
    ProbeSettings,
    TrunkSample,
    regions_of,
)
from jaxpipe.topo.probe.rounds import Round, nic_rounds, rounds, trunk_rounds

# Before `MPI` is imported, which initialises MPI otherwise.
mpi4py.rc(initialize=False, finalize=False)
from mpi4py import MPI  # noqa: E402  the line above must come first

_TEXT_BYTES = 256
_PARTS = 4
_LEAST_STREAM_PARTS, _MOST_STREAM_PARTS = 3, 64
"""Under way at once. The most bounds the memory of a receiver: a link that they do not fill, above
2.7 Gbps at 100 ms with the default sizes, may be shared without a sign of it."""
_LEAD_TRIPS = 10
"""Round trips until the windows of TCP are open."""
_LEAST_LEAD_S, _LEAST_WINDOW_S = 0.1, 0.4
_WINDOW_ROUNDS = 4
"""How often all parts under way arrive within the measured seconds."""
_TURNS = 2
"""Of streams between regions, the faster of which counts: whatever disturbs one makes it slower."""
_HEAD_TAG, _PART_TAG, _ARRIVED_TAG, _END_TAG = range(1, 5)
_REST_S = 1e-3


def measure(settings: ProbeSettings) -> Measurements | None:
    """Measure all ordered pairs of ranks; every rank calls this, rank 0 gets the result.

    It begins MPI if nobody has, and then ends it. Takes time in proportion to the number of hosts
    times the square of the devices of one.
    """
    ours = not MPI.Is_initialized()
    if ours:
        MPI.Init()
    # A communicator of its own: no message of the program can match those of the probe.
    comm = MPI.COMM_WORLD.Dup()
    try:
        return _Probe(comm, settings).run()
    finally:
        comm.Free()
        if ours:
            MPI.Finalize()


class _Probe:
    """One rank of the measurement."""

    def __init__(self, comm: MPI.Intracomm, settings: ProbeSettings) -> None:
        self._comm = comm
        self._rank: int = comm.Get_rank()
        self._settings = settings
        self._small = np.zeros(settings.small_bytes, np.uint8)
        self._part = np.zeros(max(1, settings.large_bytes // _PARTS), np.uint8)
        self._links: dict[int, tuple[float, float]] = {}  # to each: seconds to and fro, bytes/s
        self._empty = np.zeros(0, np.uint8)

    def run(self) -> Measurements | None:
        hosts = self._hosts()
        numbers = tuple(hosts.index(host) for host in hosts)
        measured = np.zeros((len(hosts), 4))  # from this rank to each: two medians, two spreads
        for pairs in rounds(numbers):
            self._meet()
            for source, destination in pairs:
                if self._rank == source:
                    measured[destination] = self._send_to(destination)
                if self._rank == destination:
                    self._answer(source)
        egress, ingress = [], []
        for number, pairs in nic_rounds(numbers):
            back = tuple((b, a) for a, b in pairs)
            for samples, ways in ((egress, pairs), (ingress, back)):
                moved = self._moved_together(ways)
                samples.append(NicSample(host=hosts[number], pairs=ways, bytes_per_s=moved))
        settings = self._texts(_text(read_tcp_settings()))
        every = np.zeros((len(hosts), *measured.shape)) if self._rank == 0 else None
        self._comm.Gather(measured, every)
        measurements = None
        if every is not None:
            measurements = Measurements(
                hosts=hosts,
                latency_s=every[:, :, 0],
                latency_spread_s=every[:, :, 1],
                bytes_per_s=every[:, :, 2],
                spread_bytes_per_s=every[:, :, 3],
                egress=tuple(egress),
                ingress=tuple(ingress),
                tcp=tuple(map(_parse, settings)),
            )
        trunks = self._trunks(numbers, self._regions(measurements, hosts))
        return None if measurements is None else replace(measurements, trunks=trunks)

    def _regions(self, measurements: Measurements | None, hosts: Sequence[str]) -> tuple[str, ...]:
        """Return the region of each rank, which rank 0 knows."""
        regions = {} if measurements is None else regions_of(measurements)
        mine = np.zeros((len(hosts), _TEXT_BYTES), np.uint8)
        for row, host in zip(mine, hosts, strict=True):
            letters = regions.get(host, "").encode()
            row[: len(letters)] = np.frombuffer(letters, np.uint8)
        self._comm.Bcast(mine)
        return _decoded(mine)

    def _trunks(self, hosts: Sequence[int], regions: Sequence[str]) -> tuple[TrunkSample, ...]:
        """Return what two regions move by one pair of hosts, and by as many as there are."""
        return tuple(
            TrunkSample(
                regions=ways,
                num_pairs=len(pairs),
                alone_bytes_per_s=max(self._moved_together(pairs[:1]) for _ in range(_TURNS)),
                bytes_per_s=max(self._moved_together(pairs) for _ in range(_TURNS)),
            )
            for ways, pairs in trunk_rounds(hosts, regions)
        )

    def _meet(self) -> None:
        """Wait for all ranks, and leave the processor to those that still measure."""
        # Not `Barrier`, which spins: ranks may share a core with one that still measures.
        request = self._comm.Ibarrier()
        while not request.Test():
            time.sleep(_REST_S)

    def _hosts(self) -> tuple[str, ...]:
        return self._texts(MPI.Get_processor_name())

    def _texts(self, mine: str) -> tuple[str, ...]:
        """Return the short texts of all ranks."""
        text = np.zeros(_TEXT_BYTES, np.uint8)
        letters = mine.encode()[:_TEXT_BYTES]
        text[: len(letters)] = np.frombuffer(letters, np.uint8)
        texts = np.zeros((self._comm.Get_size(), _TEXT_BYTES), np.uint8)
        self._comm.Allgather(text, texts)
        return _decoded(texts)

    def _send_to(self, peer: int) -> tuple[float, float, float, float]:
        """Return the latency and its spread, the bytes/s and their spread."""
        settings = self._settings
        there_and_back = self._times(peer, self._small, self._small, repeats=settings.small_repeats)
        latency = np.array(there_and_back) / 2
        one, all_parts = (np.array(self._large_times(peer, count=count)) for count in (1, _PARTS))
        one_s = float(np.median(one))
        speed = _median_and_spread(_bytes_per_s(all_parts, one_s, self._part.size))
        self._links[peer] = float(np.median(there_and_back)), speed[0]
        return (*_median_and_spread(latency), *speed)

    def _large_times(self, peer: int, *, count: int) -> list[float]:
        """Return the seconds of sending `count` parts at once, and the answer."""
        repeats = self._settings.large_repeats
        return self._times(peer, self._part, self._empty, repeats=repeats, count=count)

    def _times(
        self, peer: int, message: np.ndarray, answer: np.ndarray, *, repeats: int, count: int = 1
    ) -> list[float]:
        """Return the seconds of `count` messages at once and their answer, without the warm-up."""
        times: list[float] = []
        # Received into a copy: `answer` may be the array that is being sent.
        answer = answer.copy()
        for _ in range(self._settings.warmup + repeats):
            start_s = time.perf_counter()
            MPI.Request.Waitall([self._comm.Isend(message, peer) for _ in range(count)])
            self._comm.Recv(answer, peer)
            times.append(time.perf_counter() - start_s)
        return times[self._settings.warmup :]

    def _answer(self, peer: int) -> None:
        small = self._small.copy()
        for _ in range(self._settings.warmup + self._settings.small_repeats):
            self._comm.Recv(small, peer)
            self._comm.Send(small, peer)
        for count in (1, _PARTS):
            self._receive_large(peer, count=count)

    def _receive_large(self, peer: int, *, count: int) -> None:
        parts = [self._part.copy() for _ in range(count)]
        for _ in range(self._settings.warmup + self._settings.large_repeats):
            MPI.Request.Waitall([self._comm.Irecv(part, peer) for part in parts])
            self._comm.Send(self._empty, peer)

    def _moved_together(self, pairs: Round) -> float:
        """Return the bytes/s of the pairs when all of them send at once: the sum of their own.

        Each sends a stream, with enough parts under way that the link never waits, for as many
        seconds as the slowest pair needs. A receiver looks at the middle of its stream, in which
        all others move as well.
        """
        sources, destinations = zip(*pairs, strict=True)
        count, peer, seconds = 0, -1, np.zeros(2)  # the lead, the window
        if self._rank in sources:
            peer = destinations[sources.index(self._rank)]
            trip_s, bytes_per_s = self._links[peer]
            # A part waits for the agreement of its receiver: two round trips.
            count = math.ceil(2 * trip_s * bytes_per_s / self._part.size) + _LEAST_STREAM_PARTS
            count = min(count, _MOST_STREAM_PARTS)
            round_s = count * self._part.size * len(pairs) / bytes_per_s
            seconds[:] = _LEAD_TRIPS * trip_s, _WINDOW_ROUNDS * round_s
        self._comm.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
        lead_s, window_s = np.maximum(seconds, (_LEAST_LEAD_S, _LEAST_WINDOW_S))
        moved = np.zeros(1)
        self._meet()
        if self._rank in sources:
            self._send_stream(peer, count=count, seconds=2 * lead_s + window_s)
        elif self._rank in destinations:
            at_s = self._receive_stream(sources[destinations.index(self._rank)])
            moved[0] = self._part.size * _per_s(at_s, lead_s=lead_s, window_s=window_s)
        self._meet()
        # A sum: every rank but the receivers adds 0.
        self._comm.Allreduce(MPI.IN_PLACE, moved)
        return float(moved[0])

    def _send_stream(self, peer: int, *, count: int, seconds: float) -> None:
        """Send parts for some seconds, `count` of them under way at any time.

        The receiver says which have arrived: a send ends when the buffers of the way have its
        bytes, and these may hold seconds of a slow link.
        """
        answer = self._empty.copy()
        end_s = time.perf_counter() + seconds
        self._comm.Send(np.array([count]), peer, _HEAD_TAG)
        under_way = deque(self._comm.Isend(self._part, peer, _PART_TAG) for _ in range(count))
        num_sent = count
        while under_way:
            self._comm.Recv(answer, peer, _ARRIVED_TAG)
            under_way.popleft().Wait()
            if time.perf_counter() < end_s:
                under_way.append(self._comm.Isend(self._part, peer, _PART_TAG))
                num_sent += 1
        self._comm.Send(np.array([num_sent]), peer, _END_TAG)

    def _receive_stream(self, peer: int) -> np.ndarray:
        """Return the seconds at which the parts of a stream have arrived."""
        head, num_sent = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._comm.Recv(head, peer, _HEAD_TAG)
        parts = [self._part.copy() for _ in range(head[0])]
        last = self._comm.Irecv(num_sent, peer, _END_TAG)
        under_way = [last, *(self._comm.Irecv(part, peer, _PART_TAG) for part in parts)]
        at_s: list[float] = []
        while not num_sent[0] or len(at_s) < num_sent[0]:
            number = MPI.Request.Waitany(under_way)
            if number:  # a part, and not the end
                at_s.append(time.perf_counter())
                under_way[number] = self._comm.Irecv(parts[number - 1], peer, _PART_TAG)
                self._comm.Send(self._empty, peer, _ARRIVED_TAG)
        for request in under_way[1:]:  # no part follows
            request.Cancel()
            request.Wait()
        return np.array(at_s)


def _per_s(at_s: np.ndarray, *, lead_s: float, window_s: float) -> float:
    """Return the parts per second in the middle of a stream, of parts that arrive in bursts.

    >>> times = np.repeat(np.arange(20.0), 4)
    >>> round(_per_s(times, lead_s=2.0, window_s=16.0), 2)
    4.0
    """
    since_s = at_s - at_s[0]
    middle = at_s[(since_s >= lead_s) & (since_s <= lead_s + window_s)]
    times = middle if len(middle) > _LEAST_STREAM_PARTS else at_s
    if times[-1] == times[0]:  # too fast for the clock
        return len(times) / window_s
    # A regression: the first and the last part alone would count half a burst too much.
    return float(np.polyfit(times - times[0], np.arange(len(times)), 1)[0])


def _decoded(texts: np.ndarray) -> tuple[str, ...]:
    return tuple(row.tobytes().rstrip(b"\0").decode() for row in texts)


def _text(settings: TcpSettings | None) -> str:
    return "" if settings is None else json.dumps(asdict(settings))


def _parse(text: str) -> TcpSettings | None:
    return TcpSettings(**json.loads(text)) if text else None


def _median_and_spread(samples: np.ndarray) -> tuple[float, float]:
    low, middle, high = np.percentile(samples, (25, 50, 75))
    return float(middle), float(high - low)


def _bytes_per_s(all_s: np.ndarray, one_s: float, part_bytes: int) -> np.ndarray:
    """Return the speed of all parts at once, without what one of them takes as well.

    A part can be too small for the difference to show; then the whole time counts.
    """
    longer_s = all_s - one_s
    is_longer = longer_s > 0
    num_parts = np.where(is_longer, _PARTS - 1, _PARTS)
    return num_parts * part_bytes / np.where(is_longer, longer_s, all_s)
