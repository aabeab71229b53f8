"""Tests of all packages; they mirror the folders of the project."""

from importlib.metadata import version

MPI_FOLDER = "JAXPIPE_TESTS_MPI_FOLDER"
"""Environment variable: the folder for the sockets of the tests' own MPI jobs."""

# Without optimization, these emitters take most of a compilation: of 2.1 s of processor time for a
# step of three layers, 0.6 s are left without them (measured). jaxlib 0.11 and newer do not know
# the flag, and XLA ends a process with a flag that it does not know.
_WITHOUT_EMITTERS = (
    ("--xla_cpu_use_fusion_emitters=false",) if version("jaxlib").startswith("0.10.") else ()
)

QUICKLY_COMPILED = " ".join(
    (
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        "--xla_cpu_parallel_codegen_split_count=1",
        *_WITHOUT_EMITTERS,
    )
)
"""XLA's flags for the tests: less time for the compiler, more for a step; tests compile a lot."""
