"""Rematerialisation: what a stage keeps of a layer's forward for its backward."""

from collections.abc import Callable

import jax

from jaxpipe.runtime.settings import Remat


def rematerialise(block: Callable, remat: Remat, *, scanned: bool) -> Callable:
    """Return `block` such that its backward keeps what `remat` says.

    A model marks its attention output for `Remat.DOTS` with `checkpoint_name(x, "attention")`.
    Outside of a scan the compiler is kept from finding what is computed twice.
    """
    if remat is Remat.NONE:
        return block
    if remat is Remat.FULL:
        return jax.checkpoint(block, prevent_cse=not scanned)
    policies = jax.checkpoint_policies
    keep = policies.save_from_both_policies(
        policies.dots_with_no_batch_dims_saveable, policies.save_only_these_names("attention")
    )
    return jax.checkpoint(block, prevent_cse=not scanned, policy=keep)
