"""Large products of matrices in float32 or bfloat16, and attention, by a BLAS on the CPU.

::

    chosen_products   MKL of the extra `mkl`, or XLA, and why; imports no jax
    matrix_product    dot_general as a product of two matrices, where it is one
    custom_calls      gemm.c and attention.c, compiled on first use: custom calls of XLA
    product_lowering  the rule by which jax lowers large products to that call

Models and counts of FLOPs stay as they are: jax chooses another instruction for a product when it
lowers it, and another form of attention when it traces a stage.
"""
