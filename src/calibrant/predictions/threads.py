"""Parallel work on worker threads whose torch operations use one thread each; no thread count of the caller changes.

Many operations on small tensors are slower on two threads than on one, and far slower on a busy machine, where each
operation waits for a thread that is not running. `torch.set_num_threads` around such work would be seen by other
threads of the program. Here the work itself moves: to workers that were set to one thread when they began.
"""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

import torch

Part = TypeVar("Part")
Found = TypeVar("Found")

_lock = threading.Lock()
_here = threading.local()  # .working: this thread is a worker
_pool: ThreadPoolExecutor | None = None
_size = 0


def spread(work: Callable[[Part], Found], parts: Sequence[Part]) -> list[Found]:
    """Return ``work(part)`` of each part, on as many workers as torch may use threads here.

    The first part that raises, raises here, when all have ended. The parts see the caller's context variables and grad
    mode. Where torch may use one thread only, and in a worker, they run one after the other in the calling thread.

    Example:
        >>> spread(lambda n: n**2, [1, 2, 3])
        [1, 4, 9]
    """
    threads = torch.get_num_threads()
    if threads == 1 or getattr(_here, "working", False):
        return [work(part) for part in parts]
    grad = torch.is_grad_enabled()

    def graded(part: Part) -> Found:
        with torch.set_grad_enabled(grad):
            return work(part)

    try:
        tasks = [_workers(threads).submit(copy_context().run, graded, part) for part in parts]
    except RuntimeError:  # the interpreter is about to end, and starts no threads any more
        return [work(part) for part in parts]
    _ = [task.exception() for task in tasks]
    return [task.result() for task in tasks]


def alone(work: Callable[[], Found]) -> Found:
    """Return what ``work`` returns, computed on one thread.

    Example:
        >>> alone(torch.get_num_threads)
        1
    """
    return spread(lambda _: work(), [None])[0]


def _workers(number: int) -> ThreadPoolExecutor:
    """Return the pool, with at least so many workers; it is made once, and again in a process that was forked."""
    global _pool, _size
    with _lock:
        if _pool is None or _size < number:
            everyone = threading.Barrier(number)
            _pool, _size = ThreadPoolExecutor(number, "calibrant", _begin), number
            list(_pool.map(lambda _: everyone.wait(), range(number)))
            torch.set_num_threads(number)  # no change here; a new thread begins with the number that was set last
        return _pool


def _begin() -> None:
    _here.working = True
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread takes its number at its first question, not before


def _forget() -> None:
    global _pool, _size, _lock
    _pool, _size, _lock = None, 0, threading.Lock()


if hasattr(os, "register_at_fork"):  # the threads of a pool do not follow a fork
    os.register_at_fork(after_in_child=_forget)
