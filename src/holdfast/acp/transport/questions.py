"""Our requests that were not answered yet."""

import asyncio
from asyncio import Future
from typing import Any

from msgspec import Struct

from holdfast.acp.transport.framing import Reply
from holdfast.acp.transport.losses import Lost, Refused


class Reached(Struct, frozen=True, eq=False):
    """An answer that waits for its place in the order of lines."""

    future: Future[Any]
    answer: Reply | Lost

    def settle(self) -> None:
        """Tell whoever waits; one who gave up is passed over."""
        if self.future.done():
            return
        if isinstance(self.answer, Lost):
            self.future.set_exception(self.answer)
        elif self.answer.error is not None:
            self.future.set_exception(Refused(self.answer.error))
        else:
            self.future.set_result(self.answer.result)


class _Question(Struct, frozen=True, eq=False):
    future: Future[Any]
    is_begun: bool


class Questions:
    """Who waits for which answer; numbers count from 1."""

    def __init__(self) -> None:
        self._open: dict[int, _Question] = {}
        self._last = 0

    def number(self, *, is_begun: bool) -> tuple[int, Future[Any]]:
        """Return the number of a new question, and what will hold its answer."""
        self._last += 1
        future: Future[Any] = asyncio.get_running_loop().create_future()
        # Looked at here, because whoever asked may have gone.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._open[self._last] = _Question(future, is_begun)
        return self._last, future

    def drop(self, number: int) -> None:
        """Wait no longer for this answer."""
        self._open.pop(number, None)

    def find(self, reply: Reply) -> int | None:
        """Return the number of the question that this answers, if it is open."""
        if reply.id is not None:
            # In Python true is the number one.
            known = type(reply.id) is not bool and _is_number(reply.id)
            return int(reply.id) if known and reply.id in self._open else None
        if reply.error is not None and len(self._open) == 1:
            # The other side could not even read the number.
            return next(iter(self._open))
        return None

    def settle(self, number: int, reply: Reply) -> Reached | None:
        """Take an answer: give it to whoever waits, or return it where its place has to come."""
        question = self._open.pop(number)
        reached = Reached(question.future, reply)
        if question.is_begun:
            return reached
        reached.settle()
        return None

    def lose(self, lost: Lost) -> list[Reached]:
        """Tell all who wait that nothing will come; return what has to keep its place."""
        questions, self._open = self._open.values(), {}
        for each in questions:
            if not each.is_begun:
                Reached(each.future, lost).settle()
        return [Reached(each.future, lost) for each in questions if each.is_begun]


def _is_number(id: object) -> bool:
    return isinstance(id, int | float)
