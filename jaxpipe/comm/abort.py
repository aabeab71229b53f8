"""How the error that ends a job is told: one line that names the rank."""


def one_line(rank: int, error: BaseException) -> str:
    r"""Return the rank, the kind of error and its message, on one line.

    >>> one_line(3, ValueError("stage 1 is\n  too big"))
    'rank 3: ValueError: stage 1 is too big'
    """
    words = " ".join(str(error).split())
    kind = type(error).__name__
    return f"rank {rank}: {kind}: {words}" if words else f"rank {rank}: {kind}"
