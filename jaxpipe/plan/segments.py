"""Segments: the layers whose gradients the same ranks hold, and reduce together.

Where replicas divide the layers differently, a stage has several segments, one for each set of
ranks that hold its layers. Where all divide them alike, segments and stages are the same::

    layer        0   1   2   3   4
    replica 0    [  stage 0 ][  1  ]      ranks 0 1
    replica 1    [ 0 ][  stage 1   ]      ranks 2 3
    segment      [ 0 ][  1  ][  2  ]      reduced by ranks 0 2, 0 3 and 1 3
"""

from collections.abc import Iterable
from itertools import accumulate, pairwise

from jaxpipe.plan.partition import Cut


def refined(cuts: Iterable[Cut]) -> Cut:
    """Return the layers of each segment: the coarsest partition that refines all of these.

    >>> refined([(3, 2), (1, 4)])
    (1, 2, 2)
    >>> refined([(3, 2), (3, 2)])
    (3, 2)
    """
    edges = sorted({edge for cut in set(cuts) for edge in accumulate(cut)})
    return tuple(end - start for start, end in pairwise([0, *edges]))


def segments_within(segments: Cut, layers: range) -> range:
    """Return the segments, by their numbers, that make up the layers of a stage.

    >>> segments_within((1, 2, 2), range(1, 5))
    range(1, 3)
    """
    ends = list(accumulate(segments))
    first = 0 if layers.start == 0 else ends.index(layers.start) + 1
    return range(first, ends.index(layers.stop) + 1)
