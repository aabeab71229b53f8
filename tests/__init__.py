"""Tests of all packages; they mirror the folders of the project."""

MPI_FOLDER = "JAXPIPE_TESTS_MPI_FOLDER"
"""Environment variable: the folder for the sockets of the tests' own MPI jobs."""

QUICKLY_COMPILED = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""XLA's flags for the tests: less time for the compiler, more for a step; tests compile a lot."""
