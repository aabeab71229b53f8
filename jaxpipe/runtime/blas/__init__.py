"""Large products of float32 matrices by a BLAS, for what jaxpipe compiles on the CPU.

::

    chosen_products   MKL of the extra `mkl`, or XLA, and why; imports no jax
    matrix_product    dot_general as a product of two matrices, where it is one
    sgemm_call        sgemm.c, compiled on first use: a custom call of XLA
    product_lowering  the rule by which jax lowers large products to that call

Models, their gradients, jaxprs and counts of FLOPs stay as they are: jax alone chooses another
instruction for a product when it lowers it.
"""
