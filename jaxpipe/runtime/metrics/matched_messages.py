"""The messages of all ranks: each sent one with the one that was received, and their sums by pair.

Messages of one sender, receiver and tag arrive in the order in which they were sent, so the n-th
in the log of the sender is the n-th in that of the receiver; no message carries a number.
"""

from collections.abc import Iterator

import numpy as np

from jaxpipe.comm import (
    ALL_REDUCE_TAG,
    FILE_TAG,
    GATHER_TAG,
    NORM_TAG,
    SAVE_TAG,
    STATE_TRANSFER_TAG,
)
from jaxpipe.comm.message_log import RECEIVED, SENT
from jaxpipe.runtime.step.gradient_sync import reduction_tag
from jaxpipe.schedule import Bucket, reduce
from jaxpipe.trace import PairUse, Traffic, busy

EARLY_S = 2e-3
"""A message complete so soon after a receive that was posted late may have travelled before."""

_SCALARS_TAGS = (reduction_tag(reduce(0, Bucket.SCALARS)), NORM_TAG)
_CHECKPOINT_TAGS = (SAVE_TAG, STATE_TRANSFER_TAG, FILE_TAG)
_KINDS = tuple(Traffic)


def traffic_of(tag: int) -> Traffic:
    """Return what a message with this tag carries.

    >>> [traffic_of(tag).value for tag in (0, ALL_REDUCE_TAG, SAVE_TAG, GATHER_TAG)]
    ['activations', 'gradients', 'checkpoints', 'control']
    """
    if tag in _CHECKPOINT_TAGS:
        return Traffic.CHECKPOINTS
    if tag >= GATHER_TAG or tag in _SCALARS_TAGS:
        return Traffic.CONTROL
    return Traffic.ACTIVATIONS if tag < ALL_REDUCE_TAG else Traffic.GRADIENTS


class Matcher:
    """Matches sends with receives; those whose other half is still missing stay for the next call.

    Sends without a time are not matched, since their receives are not logged either.
    """

    def __init__(self) -> None:
        self._sends = np.zeros(0, SENT)
        self._receives = np.zeros(0, RECEIVED)

    def match(self, sends: np.ndarray, receives: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the sends and the receives that belong together, in the same order."""
        has_time = ~np.isnan(sends["started_s"])
        sends = np.concatenate([self._sends, sends[has_time]])
        receives = np.concatenate([self._receives, receives])
        both = np.concatenate([_channels(sends), _channels(receives)])
        _, channels = np.unique(both, axis=0, return_inverse=True)
        channels = channels.reshape(-1)  # NumPy 2.0 alone returns a column
        of_sends, of_receives = channels[: sends.size], channels[sends.size :]
        # The pair (channel, position in it) as one number: equal for both halves of a message.
        _, first, second = np.intersect1d(
            _numbered(of_sends), _numbered(of_receives), assume_unique=True, return_indices=True
        )
        self._sends = np.delete(sends, first)
        self._receives = np.delete(receives, second)
        return sends[first], receives[second]


def pair_uses(sends: np.ndarray, matched: tuple[np.ndarray, np.ndarray]) -> Iterator[PairUse]:
    """Yield what each pair of ranks has sent, of each kind and of all, from the log of the senders.

    `matched` are the sends and receives of the messages that have arrived; they time the links.
    """
    sent_kinds = _kinds(sends["tag"])
    begin_s, end_s, is_timed = _on_the_way(*matched)
    arrived = matched[0][is_timed]
    arrived_kinds = _kinds(arrived["tag"])
    pairs = np.unique(np.concatenate([_pairs(sends), _pairs(arrived)]), axis=0)
    for source, to in pairs.tolist():
        ours = (sends["source"] == source) & (sends["to"] == to)
        theirs = (arrived["source"] == source) & (arrived["to"] == to)
        kinds = np.union1d(sent_kinds[ours], arrived_kinds[theirs]).tolist()
        for kind in (None, *kinds):
            sent = ours if kind is None else ours & (sent_kinds == kind)
            timed = theirs if kind is None else theirs & (arrived_kinds == kind)
            seconds, num_periods = busy(begin_s[timed], end_s[timed])
            yield PairUse(
                source=source,
                to=to,
                traffic=None if kind is None else _KINDS[kind],
                num_messages=int(sent.sum()),
                num_bytes=int(sends["num_bytes"][sent].sum()),
                timed_bytes=int(arrived["num_bytes"][timed].sum()),
                seconds=seconds,
                num_periods=num_periods,
            )


def _on_the_way(
    sends: np.ndarray, receives: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return begin and end of the messages whose seconds are known, and which these are."""
    started_s, posted_s, over_s = sends["started_s"], receives["posted_s"], receives["over_s"]
    is_timed = (posted_s <= started_s) | (over_s - posted_s > EARLY_S)
    begin_s = np.maximum(started_s, posted_s)
    # Clocks of two hosts agree up to their offset's error: no message arrives before it leaves.
    return begin_s[is_timed], np.maximum(begin_s, over_s)[is_timed], is_timed


def _kinds(tags: np.ndarray) -> np.ndarray:
    """Return the positions of the traffic of some tags in `Traffic`."""
    distinct, position = np.unique(tags, return_inverse=True)
    kinds = np.array([_KINDS.index(traffic_of(tag)) for tag in distinct.tolist()], int)
    return kinds[position.reshape(-1)]


def _channels(messages: np.ndarray) -> np.ndarray:
    return np.stack([messages["source"], messages["to"], messages["tag"]], axis=1)


def _pairs(messages: np.ndarray) -> np.ndarray:
    return np.stack([messages["source"], messages["to"]], axis=1)


def _numbered(channels: np.ndarray) -> np.ndarray:
    """Return a number for each message, of its channel and its position there.

    >>> _numbered(np.array([3, 5, 3])) - (3 << 32)
    array([         0, 8589934592,          1])
    """
    order = np.argsort(channels, kind="stable")
    ordered = channels[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if order.size else order
    lengths = np.diff(np.append(begins, order.size))
    positions = np.empty(order.size, np.int64)
    positions[order] = np.arange(order.size) - np.repeat(begins, lengths)
    return (channels.astype(np.int64) << 32) + positions
