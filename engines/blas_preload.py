"""Has MLX compute with another BLAS than the one of its wheel: that is loaded first, with its symbols for all."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

import structlog

from mlxd.engines.blas_variables import CORES, LIBRARY

log = structlog.stdlib.get_logger(__name__)


class BlasShare:
    """Gives the BLAS of a worker a part of the cores while other engines are at work.

    OpenBLAS's threads wait for each other at the end of each product: two processes with as many threads as there are
    cores, which take those from each other, do a fifth less together than with half as many each.
    """

    def __init__(self, working: Callable[[], int]) -> None:
        self._working = working
        cores, library = os.environ.get(CORES), os.environ.get(LIBRARY)
        self._cores = int(cores) if cores and library else 0
        self._library = library
        self._threads = self._cores

    def look(self) -> None:
        """It is another number of engines that are at work now; on any thread."""
        threads = max(1, self._cores // max(1, self._working()))
        if not self._cores or threads == self._threads:
            return
        self._threads = threads
        try:
            ctypes.CDLL(self._library).openblas_set_num_threads(threads)
        except (OSError, AttributeError) as error:
            log.info("blas.not_shared", library=self._library, error=str(error))
            self._cores = 0


def preload_blas() -> None:
    """Load the library that the environment names, if any; called before MLX is imported.

    The dynamic linker looks for MLX's symbols among those that are there for all before it looks into what came with
    MLX. A library that cannot be loaded is logged: MLX computes without it.
    """
    library = os.environ.get(LIBRARY)
    if not library:
        return
    try:
        ctypes.CDLL(library, mode=os.RTLD_GLOBAL | os.RTLD_NOW)
    except OSError as error:
        log.error("blas.failed", library=library, error=str(error))
