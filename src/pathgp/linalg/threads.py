"""The number of threads of BLAS and LAPACK."""

import contextlib
import functools
import threading
from collections.abc import Iterator

from scipy import linalg
from threadpoolctl import ThreadpoolController

THREADED_ROWS = 2000
"""Number of rows from which several threads speed up a factorisation.

With fewer rows, several threads take no less time than one. They busy-wait for each other, so they take up to a hundred
times as long if other work uses the processors, for instance the other folds of a cross-validation.
"""

_limiting = threading.Lock()


@contextlib.contextmanager
def one_blas_thread(rows: int = 0) -> Iterator[None]:
    """Limit BLAS to one thread within this context, unless a matrix of `rows` rows is factorised in it.

    The limit applies to the whole process, including calls of LAPACK from compiled programs. So only one of several
    threads that enter sets and removes it.
    """
    if rows >= THREADED_ROWS or not _limiting.acquire(blocking=False):
        yield
        return
    try:
        with _controller().limit(limits=1, user_api="blas"):
            yield
    finally:
        _limiting.release()


@functools.cache
def _controller() -> ThreadpoolController:
    """Return the controller of the libraries that are loaded; to find them takes some milliseconds."""
    linalg.get_lapack_funcs(("potrf",))  # SciPy's library is loaded by now
    return ThreadpoolController()
