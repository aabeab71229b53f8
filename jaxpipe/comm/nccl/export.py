"""How jax arrays meet a CUDA stream: the DLPack handshake orders them, without waiting."""

import jax


def export(array: jax.Array, *, stream: int) -> tuple[int, int, object]:
    """Return address and bytes of the array, and what keeps them alive.

    DLPack's handshake makes the stream (a `cudaStream_t` as a number) wait until jax has computed
    the array, so nobody else has to. The bytes go as bytes, since NCCL knows fewer dtypes than jax.
    """
    capsule = array.__dlpack__(stream=stream)  # pyright: ignore[reportCallIssue]  the stub forgets it
    return array.unsafe_buffer_pointer(), array.nbytes, (array, capsule)
