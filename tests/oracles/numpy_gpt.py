"""The oracle: GPT-2's forward in plain NumPy and float64, one sequence and one head at a time."""

from typing import Any

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]


def logits(params: dict[str, Any], tokens: npt.NDArray[np.int64], num_heads: int) -> Matrix:
    """Return the logits (batch, seq, vocabulary), tied where the head has no kernel."""
    embed, blocks, head = params["embed"], params["blocks"], params["head"]
    rows = []
    for sequence in tokens:
        x = embed["tokens"][sequence] + embed["positions"][: len(sequence)]
        for number in range(len(blocks["norm1"]["scale"])):
            x = _block(_layer(blocks, number), x, num_heads)
        rows.append(_norm(head["norm"], x) @ head.get("kernel", embed["tokens"]).T)
    return np.stack(rows)


def loss(values: Matrix, targets: npt.NDArray[np.int64]) -> float:
    """Return the sum of -log p over all targets."""
    total = 0.0
    for row, target in zip(values.reshape(-1, values.shape[-1]), targets.ravel(), strict=True):
        total -= row[target] - row.max() - np.log(np.sum(np.exp(row - row.max())))
    return total


def _layer(tree: dict[str, Any], number: int) -> dict[str, Any]:
    return {k: _layer(v, number) if isinstance(v, dict) else v[number] for k, v in tree.items()}


def _block(layer: dict[str, Any], x: Matrix, num_heads: int) -> Matrix:
    x = x + _attention(layer["attention"], _norm(layer["norm1"], x), num_heads)
    up = _linear(layer["mlp"]["up"], _norm(layer["norm2"], x))
    gelu = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
    return x + _linear(layer["mlp"]["down"], gelu)


def _attention(layer: dict[str, Any], x: Matrix, num_heads: int) -> Matrix:
    queries, keys, values = np.split(_linear(layer["qkv"], x), 3, axis=1)
    width = x.shape[1] // num_heads
    mixed = np.zeros_like(x)
    for head in range(num_heads):
        columns = slice(head * width, (head + 1) * width)
        for reader in range(len(x)):
            scores = keys[: reader + 1, columns] @ queries[reader, columns] / np.sqrt(width)
            weights = np.exp(scores - scores.max())
            mixed[reader, columns] = weights / weights.sum() @ values[: reader + 1, columns]
    return _linear(layer["project"], mixed)


def _linear(layer: dict[str, Any], x: Matrix) -> Matrix:
    return x @ layer["kernel"].reshape(x.shape[1], -1) + layer["bias"]


def _norm(layer: dict[str, Any], x: Matrix) -> Matrix:
    centred = x - x.mean(axis=1, keepdims=True)
    variance = (centred**2).mean(axis=1, keepdims=True)
    return centred / np.sqrt(variance + 1e-5) * layer["scale"] + layer["bias"]
