"""What the devices of a rank divide must be divisible, and be there to divide."""

from jaxpipe.config.read import Config
from jaxpipe.errors import ConfigError
from jaxpipe.models import family_of
from jaxpipe.models.gpt_config import Attention
from jaxpipe.plan import Plan
from jaxpipe.runtime.config import MeshConfig
from jaxpipe.runtime.rank_mesh import rank_mesh
from jaxpipe.schedule import Op


def check_mesh_fits(config: Config, plan: Plan) -> None:
    """Check that a run can share its stages between the devices of each rank.

    Raises:
        ConfigError: a mesh does not divide heads, sequences or microbatch, or the model or the
            schedule cannot compute with parts of sequences.
    """
    meshes = {
        (rank_mesh(plan, config.mesh, rank=rank), plan.pipeline(rank).microbatch)
        for rank in range(plan.num_ranks)
    }
    for mesh, microbatch in meshes:
        _check_parts(config, mesh, microbatch=microbatch)
        if mesh.context > 1:
            _check_context(config, plan, mesh)


def _check_parts(config: Config, mesh: MeshConfig, *, microbatch: int) -> None:
    model = config.model
    field = "train.sequence" if config.train.sequence else "model.sequence"
    sequence = config.train.sequence or model.sequence
    divides = [
        ("mesh.tensor", mesh.tensor, f"model.{name}", getattr(model, name))
        for name in family_of(model).heads
    ]
    divides.append(("mesh.data", mesh.data, "plan.microbatch", microbatch))
    if mesh.sequence_parallel:
        divides.append(("mesh.tensor", mesh.tensor, field, sequence))
    for name, parts, whole_field, whole in divides:
        if whole % parts:
            choices = ", ".join(str(n) for n in range(1, whole + 1) if whole % n == 0)
            raise ConfigError(
                f"the devices of a rank have equal parts: `{name}` is {parts}, which does not "
                f"divide `{whole_field}`, {whole}; choose from {choices}"
            )
    if mesh.context > 1 and sequence % (2 * mesh.context):
        raise ConfigError(
            "each device of a rank has two pieces of a sequence: `mesh.context` is "
            f"{mesh.context}, and twice as many do not divide `{field}`, {sequence}; lower the one "
            "or change the other"
        )


def _check_context(config: Config, plan: Plan, mesh: MeshConfig) -> None:
    """Check that the model and the schedule compute with parts of sequences."""
    attention = getattr(config.model, "attention", None)
    wrong: dict[str, tuple[object, bool, str]] = {
        "model.attention": (
            attention,
            attention is Attention.FLASH,
            f'set it to "{Attention.PRODUCT}"',
        )
    }
    fixes = {
        "dropout": "set it to 0",
        "experts": "they share whole sequences",
        "classes": "they read one token alone",
    }
    for name, fix in fixes.items():
        value = getattr(config.model, name, 0)  # a family without the field has none
        wrong[f"model.{name}"] = value, value > 0, fix
    splits = any(
        each.op is Op.BACKWARD_INPUT
        for replica in range(plan.num_replicas)
        for program in plan.train_schedule(replica=replica)
        for each in program
    )
    wrong["plan.schedule"] = (plan.schedule_name, splits, "choose one that splits no backward")
    for field, (value, is_wrong, fix) in wrong.items():
        if is_wrong:
            raise ConfigError(
                f"parts of a sequence are computed apart: `mesh.context` is {mesh.context}, and "
                f"`{field}` is {value}; {fix}, or set `context` to 1"
            )
