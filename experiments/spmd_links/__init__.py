"""The pipeline against one program on all ranks, over links that the kernel shapes."""
