"""Transport over MPI, one process per rank. Importing this package needs no MPI."""
