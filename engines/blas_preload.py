"""Has MLX compute with another BLAS than the one of its wheel: that is loaded first, with its symbols for all."""

from __future__ import annotations

import ctypes
import os

import structlog

log = structlog.stdlib.get_logger(__name__)

VARIABLE = "MLXD_BLAS_LIBRARY"
"""Names the library, for this process and for those that it starts."""


def preload_blas() -> None:
    """Load the library that the environment names, if any; called before MLX is imported.

    The dynamic linker looks for MLX's symbols among those that are there for all before it looks into what came with
    MLX. A library that cannot be loaded is logged: MLX computes without it.
    """
    library = os.environ.get(VARIABLE)
    if not library:
        return
    try:
        ctypes.CDLL(library, mode=os.RTLD_GLOBAL | os.RTLD_NOW)
    except OSError as error:
        log.error("blas.failed", library=library, error=str(error))
