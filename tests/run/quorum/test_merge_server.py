"""Islands over real sockets: they join, deliver, are asked, go, come back, and are refused."""

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxpipe.errors import ConfigError, RunError
from jaxpipe.outer import QuorumConfig
from tests.run.quorum.islands import Serving, serving

pytestmark = pytest.mark.slow

START = {"w": np.array([[1, 2], [3, 4]], np.float32), "b": np.array([0.5], np.float32)}
MEAN: dict[str, Any] = {"learning_rate": 1.0, "momentum": 0.0}
CONFIG = QuorumConfig(server="x", islands=4, least=1, grace_s=10, timeout_s=30, **MEAN)


def of(config: QuorumConfig, island: int) -> QuorumConfig:
    return replace(config, island=island)


def moved(by: float) -> dict[str, np.ndarray]:
    """Return what an island delivers whose parameters have all become smaller."""
    return {name: np.full_like(tensor, by) for name, tensor in START.items()}


def until(is_so: Callable[[], bool], *, timeout_s: float = 20.0) -> None:
    until_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def in_threads(*works: Callable[[], object]) -> list[object]:
    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result(timeout=60) for future in [pool.submit(work) for work in works]]


def test_islands_get_one_anchor_and_move_it_to_their_mean() -> None:
    with serving(CONFIG) as served:
        lines = [served.line(of(CONFIG, island)) for island in range(2)]
        other = {name: tensor + 7 for name, tensor in START.items()}
        started = [lines[0].start(START, step=0), lines[1].start(other, step=0)]
        for number, anchor in started:  # the first island's
            assert number == 0
            np.testing.assert_equal(anchor, START)
        answers = in_threads(
            *(
                lambda line=line, by=by, tokens=tokens: line.deliver(
                    moved(by), base=0, step=9, steps=1, tokens=tokens
                )
                for line, by, tokens in zip(lines, (1.0, 4.0), (20.0, 10.0), strict=True)
            )
        )
        for number, anchor in answers:  # pyright: ignore[reportGeneralTypeIssues]
            assert number == 1
            np.testing.assert_allclose(anchor["w"], START["w"] - 2, rtol=1e-6)
        for line in lines:
            line.close()
        served.thread.join(timeout=20)
        assert not served.thread.is_alive()  # all have ended
    assert [[part.island for part in merge.islands] for merge in served.merges] == [[0, 1]]


def test_a_slow_island_is_asked_and_one_that_is_late_is_stale() -> None:
    config = replace(CONFIG, grace_s=0.2)
    with serving(config) as served:
        fast, slow = (served.line(of(config, island)) for island in range(2))
        fast.start(START, step=0)
        slow.start(START, step=0)
        assert not slow.asked(0)
        number, _ = fast.deliver(moved(1.0), base=0, step=9, steps=3, tokens=3)
        assert number == 1  # after the grace time, without the slow one
        until(lambda: slow.asked(0))
        in_time = ThreadPoolExecutor(1).submit(
            fast.deliver, moved(1.0), base=1, step=9, steps=3, tokens=3
        )
        number, anchor = slow.deliver(moved(2.0), base=0, step=9, steps=1, tokens=3)
        assert number == in_time.result(timeout=20)[0] == 2
        weights = [part.weight for part in served.merges[-1].islands]
        assert weights == [0.5, 0.25]
        np.testing.assert_allclose(anchor["b"], START["b"] - 1.0 - 0.5 - 0.5, rtol=1e-6)
        assert not slow.asked(2)


def test_nobody_waits_for_an_island_that_is_gone_and_it_may_come_back() -> None:
    with serving(CONFIG) as served:
        lines = [served.line(of(CONFIG, island)) for island in range(2)]
        for line in lines:
            line.start(START, step=0)
        connection = lines[1]._connection  # pyright: ignore[reportPrivateUsage]
        assert connection is not None
        connection.shutdown(socket.SHUT_RDWR)  # as if its host had died
        assert lines[0].deliver(moved(1.0), base=0, step=9, steps=1, tokens=1)[0] == 1
        back = served.line(of(CONFIG, 1))
        number, anchor = back.start({name: tensor + 9 for name, tensor in START.items()}, step=0)
        assert number == 1
        np.testing.assert_allclose(anchor["w"], START["w"] - 1)


def test_a_delivery_whose_connection_breaks_is_sent_again_and_counts_once() -> None:
    config = replace(CONFIG, least=2)
    with serving(config) as served:
        lines = [served.line(of(config, island)) for island in range(2)]
        for line in lines:
            line.start(START, step=0)
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(lines[0].deliver, moved(1.0), base=0, step=9, steps=1, tokens=1)
            merger = served.server.merger
            assert merger is not None
            until(lambda: 0 in merger.deliveries)
            connection = lines[0]._connection  # pyright: ignore[reportPrivateUsage]
            assert connection is not None
            connection.shutdown(socket.SHUT_RDWR)
            until(lambda: lines[0].num_bytes > lines[1].num_bytes + 2 * 40)
            number, anchor = lines[1].deliver(moved(3.0), base=0, step=9, steps=1, tokens=1)
            assert number == first.result(timeout=30)[0] == 1
        assert [part.weight for part in served.merges[0].islands] == [0.5, 0.5]
        np.testing.assert_allclose(anchor["b"], START["b"] - 2.0)


def test_an_island_finds_a_server_that_has_started_again() -> None:
    with serving(CONFIG) as served:
        line = served.line(of(CONFIG, 0))
        line.start(START, step=0)
        line.deliver(moved(1.0), base=0, step=9, steps=1, tokens=1)
        merger = served.server.merger
    assert merger is not None
    merger.there.clear()
    delivered = ThreadPoolExecutor(1).submit(
        line.deliver, moved(1.0), base=1, step=9, steps=1, tokens=1
    )
    time.sleep(0.1)
    with serving(CONFIG, key=served.address.key, port=served.address.port, merger=merger) as again:
        number, anchor = delivered.result(timeout=30)
        assert number == 2
        np.testing.assert_allclose(anchor["w"], START["w"] - 2)
        assert len(again.merges) == 1
        line.close()


def test_a_server_that_stays_away_is_named() -> None:
    config = replace(CONFIG, timeout_s=2.0)
    with serving(config) as served:
        line = served.line(of(config, 0))
        line.start(START, step=0)
    with pytest.raises(RunError, match=r"`quorum.timeout_s` .2."):
        line.deliver(moved(1.0), base=0, step=9, steps=1, tokens=1)


def other_model(served: Serving, config: QuorumConfig) -> None:
    served.line(of(config, 0)).start(START, step=0)
    served.line(of(config, 1)).start({"w": START["w"]}, step=0)


def wrong_delivery(served: Serving, config: QuorumConfig) -> None:
    line = served.line(of(config, 0))
    line.start(START, step=0)
    line.deliver(moved(1.0), base=5, step=9, steps=1, tokens=1)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (other_model, "`model` of island 1 is another one"),
        (wrong_delivery, "`base` is 5"),
        (
            lambda served, config: served.line(of(config, 0), batch=4).start(START, step=0),
            "`train.batch` is 4 on island 0, and 8 on the server",
        ),
        (
            lambda served, config: served.line(replace(config, islands=9, island=8)).start(
                START, step=0
            ),
            "`quorum.island` .8. must be below",
        ),
        (
            lambda served, config: served.line(replace(config, islands=3)).start(START, step=0),
            "`quorum.islands` is 3 on island 0, and 4 on the server",
        ),
        (
            lambda served, config: served.line(of(config, 0), versions="2").start(START, step=0),
            "jaxpipe is 2 on island-0, and 1 on the server",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    work: Callable[[Serving, QuorumConfig], None], words: str
) -> None:
    with serving(CONFIG) as served, pytest.raises(ConfigError, match=words):
        work(served, CONFIG)


def test_strangers_cost_the_server_nothing() -> None:
    with serving(CONFIG) as served:
        port = served.address.port
        strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
        for number, stranger in enumerate(strangers):
            if number % 2:
                stranger.sendall(b"\xff" * 5000)
        line = served.line(of(CONFIG, 0))
        assert line.start(START, step=0)[0] == 0
        assert line.deliver(moved(1.0), base=0, step=9, steps=1, tokens=1)[0] == 1
        for stranger in strangers:
            stranger.close()
    assert threading.active_count() < 50
