"""How a daemon tells itself and its children which BLAS MLX computes with."""

LIBRARY = "MLXD_BLAS_LIBRARY"
"""Names the library that is loaded before MLX."""

CORES = "MLXD_BLAS_CORES"
"""The cores that processes share as BlasShare does; not there where the user has chosen a number of threads."""
