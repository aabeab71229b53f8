"""The operators of a transformer with experts: GPT, BERT or ViT, from its sizes.

With b = samples of all devices, s = positions, d = width, h = heads, k = width of a head, f = width
of the MLP, e = experts, c = slots of an expert for each sample, v = vocabulary or classes, i = 3::

    qkv        bsd,dihk->bsihk     up    bsd,df->bsf     or with experts   router    bsd,de->bsec
    attention  bsihk->bshk         down  bsf,fd->bsd                       dispatch  bsd,bsec->ebcd
    project    bshk,hkd->bsd                                               up        ebcd,edf->ebcf
    add        bsd,bsd->bsd                                                down      ebcf,efd->ebcd
                                                                           combine   ebcd,bsec->bsd

Norms, activations and dropout are part of the operator that reads their result: they cost traffic.
FLOPs are those of `jaxpipe.models`; a test compares both.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Final

from jaxpipe.baselines.autoshard.duplex.labelled_graph import (
    LabelledGraph,
    LabelledOperator,
    Linearity,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSizes:
    """The sizes of the mixtures, in every second layer.

    Args:
        num_experts: in one layer.
        slots: of an expert, for each sample; a mean, if samples share them.
        mask_slots: columns of the mask of a routing group, over all experts; 0 without a mask.
        fullest: rows of the fullest device over the mean, for which all others wait.
    """

    num_experts: int
    slots: float
    mask_slots: float
    fullest: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerSizes:
    """The sizes of a transformer; `outputs` is its vocabulary, or its classes.

    Args:
        num_layers: attention layers.
        dim: width of the residual stream.
        num_heads: attention heads.
        sequence: positions of a sample.
        vocabulary: rows of the token table; 0 if inputs are pictures.
        outputs: columns of the head.
        reads_first: whether the head reads the first position alone.
        patch_values: values of a patch of a picture; 0 if inputs are tokens.
        experts: sizes of the mixtures; None if all layers are dense.
        splits_table: whether the rows of the token table may be split by width.
    """

    num_layers: int
    dim: int
    num_heads: int
    sequence: int
    vocabulary: int
    outputs: int
    reads_first: bool = False
    patch_values: int = 0
    experts: ExpertSizes | None = None
    splits_table: bool = True


READS_WRITES: Final = 3.0
"""How often an elementwise operator reads or writes its tensor: two reads and a write."""

_NEVER_SPLIT: Final = "sick"
"""Positions, which attention and routing mix, and what is too short to split."""


def transformer_graph(
    sizes: TransformerSizes, *, batch: int, bytes_per_element: int = 4
) -> LabelledGraph:
    """Return the graph of a step of `batch` samples over all devices."""
    building = _Building(sizes=sizes, lengths=_lengths(sizes, batch), width=bytes_per_element)
    building.embed()
    for number in range(sizes.num_layers):
        building.attention(number)
        if sizes.experts is not None and number % 2:
            building.mixture(number, sizes.experts)
        else:
            building.mlp(number)
    building.head()
    return LabelledGraph(
        operators=tuple(building.operators),
        sizes=building.lengths,
        inputs=frozenset({"inputs"}),
        parameters=frozenset(building.parameters),
        bytes_per_element=bytes_per_element,
    )


def _lengths(sizes: TransformerSizes, batch: int) -> Mapping[str, float]:
    lengths: dict[str, float] = {
        "b": batch,
        "s": sizes.sequence,
        "d": sizes.dim,
        "f": 4 * sizes.dim,
        "i": 3,
        "h": sizes.num_heads,
        "k": sizes.dim // sizes.num_heads,
        "v": sizes.outputs,
        "r": sizes.vocabulary or sizes.patch_values,
    }
    if sizes.experts is not None:
        lengths |= {"e": sizes.experts.num_experts, "c": sizes.experts.slots}
    return lengths


@dataclass(slots=True, kw_only=True)
class _Building:
    """The operators so far; `stream` is the tensor of the residual stream."""

    sizes: TransformerSizes
    lengths: Mapping[str, float]
    width: int
    operators: list[LabelledOperator] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    stream: str = "embed"

    def embed(self) -> None:
        """Look up tokens, or multiply patches."""
        flops = 2 * self._elements("bsrd") if self.sizes.patch_values else 0.0
        unsplit = "sr" if self.sizes.splits_table else "srd"
        self._add(
            "embed", "bs,rd->bsd", "inputs", flops=flops, unsplit=unsplit, traffic="bsd", rw=2
        )

    def attention(self, number: int) -> None:
        """Add norm, attention and its residual."""
        at = f"layer{number}"
        qkv = self._product(f"{at}.qkv", "bsd,dihk->bsihk", self.stream, unsplit="d", traffic="bsd")
        # Scores are written, masked, normalised, dropped and read again.
        flops = 4 * self._elements("bssd")
        heads = self._add(
            f"{at}.attention", "bsihk->bshk", qkv, flops=flops, traffic="bhss", rw=4 * READS_WRITES
        )
        self._residual(f"{at}.add1", self._product(f"{at}.project", "bshk,hkd->bsd", heads))

    def mlp(self, number: int) -> None:
        """Add norm, a dense MLP and its residual."""
        at = f"layer{number}"
        hidden = self._product(f"{at}.up", "bsd,df->bsf", self.stream, unsplit="d", traffic="bsd")
        rows = self._product(f"{at}.down", "bsf,fd->bsd", hidden, nonlinear=True, traffic="bsf")
        self._residual(f"{at}.add2", rows)

    def mixture(self, number: int, experts: ExpertSizes) -> None:
        """Add norm, router, dispatch, experts, combine and the residual."""
        at = f"layer{number}"
        masked = 2 * self._elements("bsd") * experts.mask_slots
        mask_traffic = READS_WRITES * experts.mask_slots / (experts.num_experts * experts.slots)
        # Sorted tokens are moved instead of multiplied: read and written once.
        moved = 0.0 if masked else 2.0
        mask = self._add(
            f"{at}.router",
            "bsd,de->bsec",
            self.stream,
            flops=2 * self._elements("bsde"),
            unsplit="de",
            traffic="bsec",
            rw=mask_traffic,
        )
        at_experts = f"{at}.dispatch", "bsd,bsec->ebcd"
        rows = self._add(
            *at_experts,
            self.stream,
            mask,
            # The mask has no gradient: two products instead of three.
            flops=2 / 3 * masked,
            traffic="ebcd",
            rw=moved,
            unsplit="d",
        )
        waits = experts.fullest
        rows = self._product(f"{at}.up", "ebcd,edf->ebcf", rows, waits=waits)
        rows = self._product(
            f"{at}.down", "ebcf,efd->ebcd", rows, nonlinear=True, waits=waits, traffic="ebcf"
        )
        back = f"{at}.combine", "ebcd,bsec->bsd"
        rows = self._add(
            *back, rows, mask, flops=masked, traffic="ebcd", rw=moved, linear=Linearity.PRODUCT
        )
        self._residual(f"{at}.add2", rows)

    def head(self) -> None:
        """Add the last norm, the head and the loss."""
        read = "b" if self.sizes.reads_first else "bs"
        logits = self._add(
            "head",
            f"bsd,dv->{read}v",
            self.stream,
            flops=2 * self._elements(f"{read}dv"),
            unsplit="d" if read == "bs" else "ds",
            traffic="bsd",
        )
        self._add(
            "loss", f"{read}v->", logits, unsplit="v", traffic=f"{read}v", rw=2 * READS_WRITES
        )

    def _residual(self, name: str, branch: str) -> None:
        """Add a branch to the residual stream, after dropout."""
        self.stream = self._add(
            name,
            "bsd,bsd->bsd",
            self.stream,
            branch,
            traffic="bsd",
            rw=2 * READS_WRITES,
            linear=Linearity.SUM,
        )

    def _product(
        self,
        name: str,
        equation: str,
        operand: str,
        *,
        nonlinear: bool = False,
        waits: float = 1.0,
        unsplit: str = "",
        traffic: str = "",
    ) -> str:
        """Add a product with a parameter, after a norm or an activation of the operand if any."""
        labels = "".join(dict.fromkeys(equation.partition("->")[0].replace(",", "")))
        is_linear = not nonlinear and not unsplit
        return self._add(
            name,
            equation,
            operand,
            flops=2 * waits * self._elements(labels),
            linear=Linearity.PRODUCT if is_linear else Linearity.NONE,
            unsplit=unsplit,
            traffic=traffic,
        )

    def _add(
        self,
        name: str,
        equation: str,
        *operands: str,
        flops: float = 0.0,
        linear: Linearity = Linearity.NONE,
        unsplit: str = "",
        traffic: str = "",
        rw: float = READS_WRITES,
    ) -> str:
        """Add an operator; a term of the equation without an operand is its parameter."""
        inputs = operands
        if equation.count(",") == len(operands):
            inputs = (*operands, f"{name}.kernel")
            self.parameters.append(f"{name}.kernel")
        self.operators.append(
            LabelledOperator(
                name=name,
                equation=equation,
                inputs=inputs,
                output=name,
                flops=flops,
                traffic_bytes=self.width * rw * self._elements(traffic) if traffic else 0.0,
                linearity=linear,
                unsplit=frozenset(_NEVER_SPLIT + unsplit),
            )
        )
        return name

    def _elements(self, labels: str) -> float:
        return prod(self.lengths[label] for label in labels)


def parameter_bytes(graph: LabelledGraph) -> Iterator[tuple[str, str, float]]:
    """Yield each parameter with its labels and bytes, in the order in which they are read."""
    for operator in graph.operators:
        for name, labels in zip(operator.inputs, operator.operands, strict=True):
            if name in graph.parameters:
                yield name, labels, graph.num_bytes(labels)
