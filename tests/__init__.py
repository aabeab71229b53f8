"""Tests of all packages; they mirror the folders of the project."""

MPI_FOLDER = "JAXPIPE_TESTS_MPI_FOLDER"
"""Environment variable: the folder for the sockets of the tests' own MPI jobs."""

QUICKLY_COMPILED = " ".join(
    (
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        # Without optimization, these emitters take most of a compilation's time (measured: 2.1 s
        # of processor time for a step of three layers, 0.6 s without them).
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_cpu_parallel_codegen_split_count=1",
    )
)
"""XLA's flags for the tests: less time for the compiler, more for a step; tests compile a lot."""
