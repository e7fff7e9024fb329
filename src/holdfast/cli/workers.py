"""Several processes of one server: one listening socket, one store, and a parent that watches."""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Final

from holdfast.cli.errors import exit_code, understood

log = logging.getLogger(__name__)

# A process that dies at once would otherwise be started as fast as the machine can.
REST_SECONDS: Final = 1.0
# One that gives up so early would do it again.
YOUNG_SECONDS: Final = 10.0
_STOPS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Duty:
    """What one process is told: whether it speaks for all, and how it learns that it is alone.

    `lifeline` is a pipe that nobody writes to; it ends when the parent does, however that comes.
    """

    is_herald: bool
    lifeline: int | None = None


Work = Callable[[Duty], None]


def share(work: Work, number: int) -> int:
    """Do the work in so many processes until they are told to stop; one needs no parent.

    Returns an exit code: that of a child which could not even begin, else 0.
    """
    if number == 1:
        work(Duty(is_herald=True))
        return 0
    # Before any thread or loop exists, because neither survives a fork.
    family = _Family(work)
    for place in range(number):
        family.add(place, is_herald=place == 0)
    return family.watch()


@dataclass(frozen=True)
class _Child:
    """Which of the processes it is, and since when."""

    place: int
    since: float


class _Family:
    """The children by their process number."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._children: dict[int, _Child] = {}
        self._is_stopping = False
        self._lifeline, self._held = os.pipe()
        for each in _STOPS:
            signal.signal(each, self._stop)

    def add(self, place: int, *, is_herald: bool = False) -> None:
        """Start a child at a place, unless all are to stop."""
        # Held back until the child is known: it could not be told to stop before.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        try:
            if self._is_stopping:
                return
            number = os.fork()
            if number == 0:
                self._be_child(Duty(is_herald, self._lifeline))
            self._children[number] = _Child(place, time.monotonic())
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)

    def watch(self) -> int:
        """Wait for the children; one that dies without being told to is replaced."""
        code = 0
        while self._children:
            number, status = os.wait()
            child = self._children.pop(number, None)
            if child is None or self._is_stopping:
                continue
            ended = os.waitstatus_to_exitcode(status)
            log.error("a worker ended", extra={"fields": {"worker": child.place, "code": ended}})
            if ended > 0 and time.monotonic() - child.since < YOUNG_SECONDS:
                code = ended
                self._stop(signal.SIGTERM, None)
            else:
                time.sleep(REST_SECONDS)
                self.add(child.place)
        os.close(self._lifeline)
        os.close(self._held)
        return code

    def _be_child(self, duty: Duty) -> None:
        code = 0
        try:
            os.close(self._held)
            for each in _STOPS:
                signal.signal(each, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
            self._work(duty)
        # Whatever it is: nothing of the parent's may run in here after this.
        except BaseException as error:  # noqa: BLE001
            told = understood(error)
            log.error(told.message)
            code = exit_code(told)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            # Not `sys.exit`: what the parent has opened is the parent's to close.
            os._exit(code)

    def _stop(self, number: int, _: FrameType | None) -> None:
        self._is_stopping = True
        for child in tuple(self._children):
            os.kill(child, number)
