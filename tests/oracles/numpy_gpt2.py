"""The oracle: GPT-2's forward in NumPy and float64, on tensors under Hugging Face's own names."""

import numpy as np

from jaxpipe.models import GptConfig

Tensors = dict[str, np.ndarray]


def random_tensors(config: GptConfig, *, seed: int = 0) -> Tensors:
    """Return float32 tensors of a GPT-2, as `save_pretrained` names them."""
    random, dim = np.random.default_rng(seed), config.dim
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (config.vocabulary, dim),
        "transformer.wpe.weight": (config.sequence, dim),
        "transformer.ln_f.weight": (dim,),
        "transformer.ln_f.bias": (dim,),
    }
    for layer in range(config.num_layers):
        for name, shape in {
            "ln_1.weight": (dim,),
            "ln_1.bias": (dim,),
            "ln_2.weight": (dim,),
            "ln_2.bias": (dim,),
            "attn.c_attn.weight": (dim, 3 * dim),
            "attn.c_attn.bias": (3 * dim,),
            "attn.c_proj.weight": (dim, dim),
            "attn.c_proj.bias": (dim,),
            "mlp.c_fc.weight": (dim, 4 * dim),
            "mlp.c_fc.bias": (4 * dim,),
            "mlp.c_proj.weight": (4 * dim, dim),
            "mlp.c_proj.bias": (dim,),
        }.items():
            shapes[f"transformer.h.{layer}.{name}"] = shape
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocabulary, dim)
    return {
        name: random.normal(0.0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()
    }


def logits(tensors: Tensors, tokens: np.ndarray, config: GptConfig) -> np.ndarray:
    """Return the logits (batch, seq, vocabulary)."""
    wide = {
        name.removeprefix("transformer."): tensor.astype(np.float64)
        for name, tensor in tensors.items()
    }
    x = wide["wte.weight"][tokens] + wide["wpe.weight"][: tokens.shape[1]]
    for layer in range(config.num_layers):
        here = {n.removeprefix(f"h.{layer}."): t for n, t in wide.items()}
        x = x + _attention(here, _norm(here, "ln_1", x), config.num_heads)
        up = _linear(here, "mlp.c_fc", _norm(here, "ln_2", x))
        gelu = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
        x = x + _linear(here, "mlp.c_proj", gelu)
    return _norm(wide, "ln_f", x) @ wide.get("lm_head.weight", wide["wte.weight"]).T


def _attention(here: Tensors, x: np.ndarray, num_heads: int) -> np.ndarray:
    batch, seq, dim = x.shape
    heads = [
        part.reshape(batch, seq, num_heads, -1).swapaxes(1, 2)
        for part in np.split(_linear(here, "attn.c_attn", x), 3, axis=-1)
    ]
    q, k, v = heads
    scores = q @ k.swapaxes(2, 3) / np.sqrt(dim // num_heads)
    scores = np.where(np.tri(seq, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = weights / weights.sum(axis=-1, keepdims=True) @ v
    return _linear(here, "attn.c_proj", mixed.swapaxes(1, 2).reshape(batch, seq, dim))


def _linear(here: Tensors, name: str, x: np.ndarray) -> np.ndarray:
    return x @ here[f"{name}.weight"] + here[f"{name}.bias"]


def _norm(here: Tensors, name: str, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    return scaled * here[f"{name}.weight"] + here[f"{name}.bias"]
