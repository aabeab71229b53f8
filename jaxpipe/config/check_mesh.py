"""What devices of a rank and routing groups divide must be divisible, and be there to divide."""

from jaxpipe.config.read import Config
from jaxpipe.errors import ConfigError
from jaxpipe.models import family_of
from jaxpipe.plan import Plan
from jaxpipe.runtime.rank_mesh import MeshConfig, rank_mesh


def check_mesh_fits(config: Config, plan: Plan) -> None:
    """Check that a run can share its stages between the devices of each rank.

    Raises:
        ConfigError: a mesh does not divide heads, sequences or microbatch, or routing groups the
            microbatch.
    """
    meshes = {
        (rank_mesh(plan, config.mesh, rank=rank), plan.pipeline(rank).microbatch)
        for rank in range(plan.num_ranks)
    }
    for mesh, microbatch in meshes:
        _check_parts(config, mesh, microbatch=microbatch)


def _check_parts(config: Config, mesh: MeshConfig, *, microbatch: int) -> None:
    model = config.model
    field = "train.sequence" if config.train.sequence else "model.sequence"
    sequence = config.train.sequence or model.sequence
    divides = [
        ("mesh.tensor", mesh.tensor, f"model.{name}", getattr(model, name))
        for name in family_of(model).heads
    ]
    divides.append(("mesh.data", mesh.data, "plan.microbatch", microbatch))
    groups = getattr(model, "routing_groups", 0) if getattr(model, "experts", 0) else 0
    divides.append(("model.routing_groups", max(1, groups), "plan.microbatch", microbatch))
    if mesh.sequence_parallel:
        divides.append(("mesh.tensor", mesh.tensor, field, sequence))
    for name, parts, whole_field, size in divides:
        if size % parts:
            choices = ", ".join(str(n) for n in range(1, size + 1) if size % n == 0)
            raise ConfigError(
                f"`{name}` ({parts}) must divide `{whole_field}` ({size}); choose from {choices}"
            )
    if mesh.context > 1 and sequence % (2 * mesh.context):
        raise ConfigError(
            f"`{field}` ({sequence}) must be a multiple of 2 x `mesh.context` "
            f"({2 * mesh.context}): ring attention gives each device two pieces"
        )
