"""The oracle: the forward of the family `llama` in NumPy and float64, one query at a time."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxpipe.models.llama_config import Activation, LlamaConfig
from jaxpipe.models.rope_scaling import RopeScaling

Matrix = npt.NDArray[np.float64]


def logits(config: LlamaConfig, params: dict[str, Any], tokens: npt.NDArray[np.int64]) -> Matrix:
    """Return the logits (batch, seq, vocabulary)."""
    table, head = params["embed"]["tokens"], params["head"]
    rows = []
    for sequence in tokens:
        x = table[sequence] * (math.sqrt(config.dim) if config.scaled_embedding else 1)
        x = x * config.embedding_factor
        for number in range(config.num_layers):
            layer = _layer(params["blocks"], number)
            local = config
            if config.local_base:
                local = replace(
                    config, rope_base=config.local_base, rope_scaling=RopeScaling.NONE, local_base=0
                )
            if not config.alternating and number not in config.full_layers:
                is_turned = not config.unturned or len(config.full_layers) > 0
                x = _block(local, layer, x, config.window, is_turned=is_turned)
                continue
            for part in sorted(set(layer) - {"full"}) if config.alternating else ():
                x = _block(local, layer[part], x, config.window)
            full = layer["full"] if config.alternating else layer
            x = _block(config, full, x, 0, is_turned=not config.unturned)
        found = _norm(config, head["norm"], x) @ (table if config.tied else head["kernel"]).T
        rows.append(_capped(found / config.logits_divisor, config.final_softcap))
    return np.stack(rows)


def _layer(tree: dict[str, Any], number: int) -> dict[str, Any]:
    return {k: _layer(v, number) if isinstance(v, dict) else v[number] for k, v in tree.items()}


def _block(
    config: LlamaConfig, layer: dict[str, Any], x: Matrix, window: int, *, is_turned: bool = True
) -> Matrix:
    def normed(name: str, values: Matrix) -> Matrix:
        return _norm(config, layer[name], values) if name in layer else values

    mixed = _attention(config, layer["attention"], normed("norm1", x), window, is_turned)
    x = x + config.residual_factor * normed("attention_norm", mixed)
    mlp = _experts if config.experts else _mlp
    output = mlp(config, layer["moe" if config.experts else "mlp"], normed("norm2", x))
    return x + config.residual_factor * normed("mlp_norm", output)


def _mlp(config: LlamaConfig, layer: dict[str, Any], x: Matrix) -> Matrix:
    gate = _linear(layer["gate"], x)
    if config.activation is Activation.SILU:
        gate = gate / (1 + np.exp(-gate))
    else:
        gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    return _linear(layer["down"], gate * _linear(layer["up"], x))


def _experts(config: LlamaConfig, layer: dict[str, Any], x: Matrix) -> Matrix:
    """Return the sum of the outputs of each token's experts, one token and expert at a time."""
    rows = []
    for token in x:
        scores = token @ layer["router"]
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        chosen = sorted(range(config.experts), key=lambda expert: -weights[expert])
        chosen = chosen[: config.experts_per_token]
        total = sum(weights[expert] for expert in chosen) if config.normalised_gates else 1
        row = np.zeros_like(token)
        for expert in chosen:
            kernels = {name: {"kernel": layer[name][expert]} for name in ("gate", "up", "down")}
            row += weights[expert] / total * _mlp(config, kernels, token[None])[0]
        rows.append(row)
    return np.stack(rows)


def _attention(
    config: LlamaConfig, layer: dict[str, Any], x: Matrix, window: int, is_turned: bool
) -> Matrix:
    width, shared = config.width, config.num_heads // config.num_kv_heads
    queries, keys, values = (_linear(layer[name], x) for name in ("query", "key", "value"))
    if config.wide_qk_norm:
        queries = _norm(config, layer["query_norm"], queries)
        keys = _norm(config, layer["key_norm"], keys)
        layer = {k: v for k, v in layer.items() if k not in ("query_norm", "key_norm")}
    mixed = np.zeros((len(x), config.query_width))
    for head in range(config.num_heads):
        own = slice(head * width, (head + 1) * width)
        read = slice(head // shared * width, (head // shared + 1) * width)
        for reader in range(len(x)):
            first = max(0, reader + 1 - window) if window else 0
            turns = reader if is_turned else None
            query = _turned(
                config, layer.get("query_norm"), queries[reader, own], turns, length=len(x)
            )
            scores = np.array(
                [
                    query
                    @ _turned(
                        config,
                        layer.get("key_norm"),
                        keys[place, read],
                        place if is_turned else None,
                        length=len(x),
                    )
                    for place in range(first, reader + 1)
                ]
            ) / math.sqrt(config.query_scale or width)
            weights = np.exp(_capped(scores, config.attention_softcap))
            mixed[reader, own] = weights / weights.sum() @ values[first : reader + 1, read]
    return _linear(layer["project"], mixed)


def _turned(
    config: LlamaConfig,
    norm: dict[str, Any] | None,
    vector: Matrix,
    place: int | None,
    *,
    length: int,
) -> Matrix:
    """Return one head's vector at one position: pairs as complex numbers, turned."""
    if norm is not None:
        vector = _norm(config, norm, vector[None])[0]
    if place is None:
        return vector
    half = (config.rotary_width or config.width) // 2
    angles = [place * _frequency(config, pair, length) for pair in range(half)]
    turned = (vector[:half] + 1j * vector[half : 2 * half]) * np.exp(1j * np.array(angles))
    if config.rope_scaling is RopeScaling.YARN:
        turned *= config.rope_magnitude or 1 + 0.1 * math.log(config.rope_factor)
    if config.rope_scaling is RopeScaling.LONGROPE:
        # The logarithm of the extended length, with the one of pretraining as its base.
        extended = math.log(config.rope_factor * config.rope_sequence, config.rope_sequence)
        turned *= config.rope_magnitude or math.sqrt(extended)
    return np.concatenate([turned.real, turned.imag, vector[2 * half :]])


def _frequency(config: LlamaConfig, pair: int, length: int) -> float:
    base, factor = config.rope_base, config.rope_factor
    width = config.rotary_width or config.width
    if config.rope_scaling is RopeScaling.NTK:
        base *= factor ** (width / (width - 2))
    plain = base ** (-2 * pair / width)
    if config.rope_scaling is RopeScaling.LONGROPE:
        divisors = config.rope_long if length > config.rope_sequence else config.rope_short
        plain /= divisors[pair]
    if config.rope_scaling is RopeScaling.LINEAR:
        return plain / factor
    if config.rope_scaling is RopeScaling.LLAMA3:
        wavelength = 2 * math.pi / plain
        if wavelength < config.rope_sequence / config.rope_high:
            return plain
        if wavelength > config.rope_sequence / config.rope_low:
            return plain / factor
        smooth = config.rope_sequence / wavelength - config.rope_low
        smooth /= config.rope_high - config.rope_low
        return (1 - smooth) * plain / factor + smooth * plain
    if config.rope_scaling is RopeScaling.YARN:
        ends = []
        for turns in (config.rope_high, config.rope_low):
            # The pair, a real number, whose wavelength is the sequence over the turns.
            wavelength = config.rope_sequence / turns
            ends.append(width / 2 * math.log(wavelength / (2 * math.pi)) / math.log(base))
        if config.rope_truncate:
            ends = [math.floor(ends[0]), math.ceil(ends[1])]
        first, last = max(ends[0], 0), min(ends[1], width - 1)
        smooth = min(max((pair - first) / (last - first or 0.001), 0), 1)
        return smooth * plain / factor + (1 - smooth) * plain
    return plain


def _capped(x: Matrix, bound: float) -> Matrix:
    return bound * np.tanh(x / bound) if bound else x


def _linear(layer: dict[str, Any], x: Matrix) -> Matrix:
    return x @ layer["kernel"] + layer.get("bias", 0)


def _norm(config: LlamaConfig, layer: dict[str, Any], x: Matrix) -> Matrix:
    scale = layer["scale"] + (1 if config.norm_offset else 0)
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + config.norm_epsilon) * scale
