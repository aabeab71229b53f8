"""Products with a forward and a backward of their own, shared by all families of models.

- `attention`: blocked products, or cuDNN's fused kernel; `scores` has the pieces of both directions
- `cached_attention`, `placed_attention`, `ring_attention`: what a layer calls in its place
- `cross_entropy`: a head's loss without all of its logits at once
- `activations`, `rotary`, `dropout`
"""
