"""The ranges of message tags, in one table, so that no two uses collide.

::

    0 ............ 2**20 - 1    messages of the pipeline, chosen by the program
    2**20 ........ 3 * 2**19    all-reduces: `ALL_REDUCE_TAG` + bucket; the last is `NORM_TAG`
    3 * 2**19 .... 2**21 - 1    outer steps: `OUTER_TAG` + what is exchanged
    2**21 ........              one tag each: gather, broadcast, barrier, clock, group, close, save,
                                the state transfer after the loss of a rank, files, and control
    `NCCL_TAG`                  control messages of `NcclTransport`
    2**22 ........              tokens of `ShapedTransport`: `TOKEN_TAG` + tag of the message

Two collectives of the same kind may share their tag if all ranks begin them in the same order. MPI
guarantees tags only up to 32,767; `MpiTransport` checks that `LARGEST_TAG` fits.
"""

NUM_MESSAGE_TAGS = 2**20
ALL_REDUCE_TAG = NUM_MESSAGE_TAGS
OUTER_TAG = ALL_REDUCE_TAG + 2**19
NORM_TAG = OUTER_TAG - 1
GATHER_TAG = 2**21
BROADCAST_TAG = GATHER_TAG + 1
BARRIER_TAG = GATHER_TAG + 2
CLOCK_TAG = GATHER_TAG + 3
GROUP_TAG = GATHER_TAG + 4
CLOSE_TAG = GATHER_TAG + 5
SAVE_TAG = GATHER_TAG + 6
STATE_TRANSFER_TAG = GATHER_TAG + 7
FILE_TAG = GATHER_TAG + 8
CONTROL_TAG = GATHER_TAG + 9
MAX_TAG = CONTROL_TAG
NCCL_TAG = MAX_TAG + 1
TOKEN_TAG = 2**22
LARGEST_TAG = TOKEN_TAG + MAX_TAG
