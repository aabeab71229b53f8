"""The oracle of a mixture of experts: one token after the other, in NumPy and float64.

From the papers' equations: Fedus et al. 2021, "Switch Transformers" (1 to 6), Lepikhin et al. 2020,
"GShard" (algorithm 1, without random dispatch), Zoph et al. 2022, "ST-MoE" (5).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jaxpipe.models.moe.routing import Dispatch, Routing

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Mixed:
    """The outputs of all tokens, the two losses before their weights, and the choices dropped."""

    y: Reals
    balance: float
    z: float
    dropped: int


def mixture(x: Reals, params: dict[str, Reals], routing: Routing) -> Mixed:
    """Return what a layer with experts computes for (batch, seq, dim)."""
    batch, seq, _ = x.shape
    num_experts = routing.experts
    logits = x @ params["router"]
    exp = np.exp(logits - logits.max(-1, keepdims=True))
    p = exp / exp.sum(-1, keepdims=True)
    slots = seq if routing.dispatch is Dispatch.RAGGED else routing.capacity(seq)
    y, firsts, dropped = np.zeros_like(x), np.zeros(num_experts), 0
    for group in range(batch):
        taken = [0] * num_experts
        for choice in range(routing.experts_per_token):
            for token in range(seq):
                probabilities = p[group, token]
                # A stable sort: of equal probabilities the lowest expert comes first.
                ranked = np.argsort(-probabilities, kind="stable")[: routing.experts_per_token]
                expert = int(ranked[choice])
                firsts[expert] += choice == 0
                taken[expert] += 1
                if taken[expert] > slots:
                    dropped += 1
                    continue
                gate = probabilities[expert]
                if routing.normalised_gates:
                    gate = gate / probabilities[ranked].sum()
                y[group, token] += gate * _expert(x[group, token], params, expert)
    tokens = batch * seq
    balance = num_experts * float((firsts / tokens * p.mean((0, 1))).sum())
    z = float((np.log(np.exp(logits).sum(-1)) ** 2).mean())
    return Mixed(y, balance, z, dropped)


def _expert(token: Reals, params: dict[str, Reals], expert: int) -> Reals:
    up = token @ params["up"][expert]
    gelu = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
    return gelu @ params["down"][expert]
