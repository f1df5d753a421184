"""Calls that end before they are done: by a flag, and by what a signal's handler raises, as Ctrl-C does.

Python runs handlers of signals in its main thread, between two of its instructions, and a call into C is one. A long
call of the main thread is therefore made by a thread that helps it, while the main thread waits for it at a lock, which
signals interrupt. Where a handler raises, the call is cancelled and what was raised goes on.
"""

from __future__ import annotations

import _thread
import ctypes as c
import os
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from . import _declarations as d
from ._library import last_error


class Cancel:
    """A flag by which another thread ends calls: give it as `cancel`, and set() has them raise Cancelled.

    On the CPU a call ends within some milliseconds; its outputs hold no result. On a GPU the flag is read before the
    work is queued. Many calls may have the same flag. Ctrl-C in a call of the main thread sets it.
    """

    __slots__ = ("_flag",)

    def __init__(self) -> None:
        self._flag = c.c_int32()

    def set(self) -> None:
        """Ends the calls that have this flag, and those that get it, until clear()."""
        self._flag.value = 1

    def clear(self) -> None:
        """Lets calls run again."""
        self._flag.value = 0

    def is_set(self) -> bool:
        """Whether set() was called last."""
        return self._flag.value != 0


def pointer_of(name: str, value: Any) -> Any:
    """The flag for C."""
    if not isinstance(value, Cancel):
        raise TypeError(f"{name} is {type(value).__name__}, expected a tessella.Cancel")
    return c.pointer(value._flag)


class _Task:
    """A call on its way to the helper."""

    __slots__ = ("claimed", "done", "error", "is_done", "run", "said", "status")

    def __init__(self, run: Callable[[], int]) -> None:
        self.run: Callable[[], int] | None = run
        self.claimed = _thread.allocate_lock()  # by the thread that runs it, or by the one that gives it up
        self.done = _thread.allocate_lock()  # wakes the thread that waits
        self.done.acquire()
        self.is_done = False
        self.status = d.OK
        self.said = ""
        self.error: BaseException | None = None

    def execute(self) -> None:
        if not self.claimed.acquire(blocking=False):
            return
        run, self.run = self.run, None
        try:
            assert run is not None
            self.status = run()
            if self.status != d.OK:
                self.said = last_error()  # it is the thread's own
        except BaseException as error:
            self.error = error
        del run  # and with it the call's arrays
        self.is_done = True
        self.done.release()


_tasks: SimpleQueue[_Task] | None = None  # of the helper, which stays: so does its memory for workspaces
_is_busy = False


def _help(tasks: SimpleQueue[_Task]) -> None:
    while True:
        tasks.get().execute()


def _forget() -> None:
    """A forked child has no helper."""
    global _tasks, _is_busy
    _tasks, _is_busy = None, False


os.register_at_fork(after_in_child=_forget)


def _helper() -> SimpleQueue[_Task] | None:
    """The queue of the helper; None if this thread runs the call itself."""
    global _tasks
    # A handler that interrupts a call may make one too; and the interpreter's end lets no other thread run.
    if _is_busy or threading.main_thread().ident != _thread.get_ident() or sys.is_finalizing():
        return None
    if _tasks is None:
        tasks: SimpleQueue[_Task] = SimpleQueue()
        try:
            _thread.start_new_thread(_help, (tasks,))
        except RuntimeError:  # no more threads are to be had
            return None
        _tasks = tasks
    return _tasks


def interruptible(run: Callable[[], int], options: Any) -> tuple[int, str]:
    """run(), a call of C with these options: its status and, of a failure, the message."""
    global _is_busy
    tasks = _helper()
    if tasks is None:
        status = run()
        return status, "" if status == d.OK else last_error()
    if not options.cancel:
        options.cancel = c.pointer(c.c_int32())
    task = _Task(run)
    raised: BaseException | None = None
    is_put = False
    _is_busy = True
    try:
        while True:
            try:
                if not is_put:
                    tasks.put(task)
                    is_put = True
                while not task.is_done:  # a handler may raise when the lock has been taken
                    task.done.acquire()
                break
            except BaseException as error:
                options.cancel[0] = 1
                raised = raised or error
                if task.claimed.acquire(blocking=False):
                    break  # nobody has begun it, nobody will
    finally:
        _is_busy = False
    raised = raised or task.error
    if raised is not None:
        raise raised
    return task.status, task.said
