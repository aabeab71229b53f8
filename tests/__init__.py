"""Tests of all packages; they mirror the folders of the project."""

MPI_FOLDER = "JAXPIPE_TESTS_MPI_FOLDER"
"""Environment variable: the folder for the sockets of the tests' own MPI jobs."""
