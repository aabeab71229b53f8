"""Sums of a hierarchical all-reduce with a codec, on one device: from what each rank brings.

::

    members of the tree's root    a = sum of its ranks    b            c
    two of them                   D(a) + D(b)
    more, of the share of b       D(D(a) + b + D(c))                       D(x) = decode(encode(x))

Within a member nothing is encoded. With error feedback, D(x) is D(x + e), and the error of that is
the e of the next sum: one for each rank and element.

Which elements are encoded together, and so have a scale in common, is that of the run: the messages
of `jaxpipe.collective.shards`.

Ranks and one device differ by rounding before a codec. A value as near as that, 1e-12 of its size,
to where the codec or float32 rounds the other way would be a difference of one such step.
"""

from collections.abc import Hashable, Mapping

import numpy as np

from jaxpipe.collective import AllReduceKind, SyncTree
from jaxpipe.collective.algorithms import num_chunks
from jaxpipe.collective.codec.codec import Codec, encode_with_feedback
from jaxpipe.collective.shards import ElementRange, share_groups
from jaxpipe.collective.sync_tree import pruned, ranks


class CodedSums:
    """The sums of vectors by their keys, and of each key the errors of its last sum.

    `chunk_bytes` is the size of a message before it is encoded.
    """

    def __init__(self, codec: Codec | None, *, chunk_bytes: int, feeds_back: bool) -> None:
        self._codec = codec
        self._chunk_bytes = chunk_bytes
        self._feeds_back = feeds_back
        self._errors: dict[tuple[Hashable, int], np.ndarray] = {}

    def rescale(self, ratio: float) -> None:
        """Multiply the errors, where what is summed next has another scale."""
        for errors in self._errors.values():
            np.multiply(errors, np.float32(ratio), out=errors)

    def total(self, key: Hashable, vectors: Mapping[int, np.ndarray], tree: SyncTree) -> np.ndarray:
        """Return the sum of the vectors of the ranks of a tree.

        >>> from jaxpipe.collective.codec.top_k import TopKCodec
        >>> sums = CodedSums(TopKCodec(fraction=0.5), chunk_bytes=2**10, feeds_back=True)
        >>> vectors = {0: np.array([2.0, 1.0]), 1: np.array([2.0, 1.0])}
        >>> [sums.total("", vectors, (0, 1)).tolist() for _ in range(2)]
        [[4.0, 0.0], [0.0, 4.0]]
        """
        root, members = pruned(tree), ranks(tree)
        total = np.sum([vectors[rank] for rank in members], axis=0)
        if isinstance(root, int) or self._codec is None or not total.size:
            return total
        chunks = num_chunks(
            AllReduceKind.HIERARCHICAL,
            num_ranks=len(members),
            size=total.size,
            message_size=max(1, self._chunk_bytes // total.itemsize),
        )
        of_members = [np.sum([vectors[r] for r in ranks(member)], axis=0) for member in root]
        for chunk in ElementRange(0, total.size).cut(chunks):
            for part, group in share_groups(root, chunk):
                holders = [(key, rank) for rank in group]
                self._exchange(self._codec, total, of_members, holders, part)
        return total

    def _exchange(
        self,
        codec: Codec,
        total: np.ndarray,
        of_members: list[np.ndarray],
        holders: list[tuple[Hashable, int]],
        part: ElementRange,
    ) -> None:
        """Write the sum over all members of a part that a rank of each of them holds."""

        def decoded(vector: np.ndarray, holder: tuple[Hashable, int], share: slice) -> np.ndarray:
            values = vector[share].astype(np.float32)
            if not self._feeds_back:
                return codec.decode(codec.encode(values), size=values.size).astype(vector.dtype)
            errors = self._errors.setdefault(holder, np.zeros(vector.size, np.float32))
            encoded, errors[share] = encode_with_feedback(codec, values, errors[share])
            return codec.decode(encoded, size=values.size).astype(vector.dtype)

        shares = [slice(*share) for share in part.cut(len(holders))]
        if len(holders) == 2:
            share = slice(*part)
            pairs = zip(of_members, holders, strict=True)
            total[share] = np.sum([decoded(vector, at, share) for vector, at in pairs], axis=0)
            return
        for number, share in enumerate(shares):
            if share.stop > share.start:
                for other, (vector, holder) in enumerate(zip(of_members, holders, strict=True)):
                    part_of = vector[share] if other == number else decoded(vector, holder, share)
                    total[share] = part_of if other == 0 else total[share] + part_of
                total[share] = decoded(total, holders[number], share)
