"""The partition of layers into stages: how many consecutive layers each stage holds."""

from jaxpipe.errors import PlanError

Cut = tuple[int, ...]


def even_partition(*, num_layers: int, num_stages: int) -> Cut:
    """Return a partition whose stages differ by one layer at most.

    The last stage also computes the head, so spare layers go to the first stages.

    >>> even_partition(num_layers=10, num_stages=4)
    (3, 3, 2, 2)

    Raises:
        PlanError: there are fewer layers than stages.
    """
    if num_layers < num_stages:
        raise PlanError(
            f"`plan.stages` ({num_stages}) must be at most {num_layers}, the layers of the model: "
            "each stage holds at least one layer"
        )
    size, spare = divmod(num_layers, num_stages)
    return tuple(size + (stage < spare) for stage in range(num_stages))


def check_partition(cut: Cut, *, num_layers: int, num_stages: int, field: str = "plan.cut") -> None:
    """Check that the partition covers all layers, with at least one in each stage.

    Errors name the `field` that it is from.

    Raises:
        PlanError: it does not.
    """
    if len(cut) != num_stages:
        raise PlanError(
            f"`plan.cut` has one number for each stage: it has {len(cut)}, `plan.stages` is "
            f"{num_stages}; give {num_stages} numbers"
        )
    if min(cut, default=0) < 1:
        raise PlanError(f"`{field}` {list(cut)} must have at least one layer in each stage")
    if sum(cut) != num_layers:
        raise PlanError(
            f"`{field}` covers the layers: {list(cut)} adds up to {sum(cut)}, the model has "
            f"{num_layers} layers"
        )


def layers_of(cut: Cut, stage: int) -> range:
    """Return the layers of a stage.

    >>> layers_of((3, 3, 2, 2), 1)
    range(3, 6)
    """
    start = sum(cut[:stage])
    return range(start, start + cut[stage])
