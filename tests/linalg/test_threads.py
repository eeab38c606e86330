import threading

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from pathgp.linalg.threads import THREADED_ROWS, one_blas_thread


def threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@pytest.fixture(autouse=True)
def two_threads():
    """Tests have one thread of BLAS, which nothing could limit any further."""
    with threadpool_limits(2, user_api="blas"):
        yield


@pytest.mark.parametrize(("rows", "single"), [(0, True), (THREADED_ROWS - 1, True), (THREADED_ROWS, False)])
def test_few_rows_take_one_thread_and_leave_as_many_as_there_were(rows, single):
    before = threads()
    with one_blas_thread(rows):
        assert threads() == ([1] * len(before) if single else before)
        with one_blas_thread():
            assert set(threads()) == {1}
        assert threads() == ([1] * len(before) if single else before)
    assert threads() == before


def test_an_error_leaves_as_many_threads_as_there_were():
    before = threads()
    with pytest.raises(KeyboardInterrupt), one_blas_thread():
        raise KeyboardInterrupt
    assert threads() == before


def test_two_at_once_leave_as_many_threads_as_there_were():
    before, seen = threads(), []
    entered, leave = threading.Event(), threading.Event()

    def last():
        with one_blas_thread():
            seen.append(set(threads()))
            entered.set()
            leave.wait()

    thread = threading.Thread(target=last)
    with one_blas_thread():
        thread.start()
        entered.wait()
    leave.set()
    thread.join()
    assert seen == [{1}]
    assert threads() == before
    with one_blas_thread():
        assert set(threads()) == {1}
    assert threads() == before
