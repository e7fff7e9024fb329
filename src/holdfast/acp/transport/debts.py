"""Their requests that we did not answer yet."""

import asyncio
import logging
from asyncio import Task
from collections.abc import Coroutine
from typing import Any

from msgspec import Struct

from holdfast.acp.transport.framing import CANCELLED, INTERNAL_ERROR, Reply, Request, RpcError
from holdfast.acp.transport.losses import Refused

log = logging.getLogger(__name__)


class _Debt(Struct, eq=False):
    work: Task[Any] | None = None
    is_cancelled: bool = False


class Debts:
    """What we owe, and who works on it; two requests with the same id are two debts."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[Request, _Debt] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, request: object) -> bool:
        return request in self._open

    def owe(self, request: Request) -> bool:
        """Take a request on; `False` when there are too many."""
        if len(self._open) >= self._most:
            return False
        self._open[request] = _Debt()
        return True

    def pay(self, request: Request) -> bool:
        """Count a request as answered; `False` when it was, or when nobody is there."""
        debt = self._open.pop(request, None)
        if debt is not None and debt.work is not None:
            # Answered by somebody else: nobody waits for this work any more.
            debt.work.cancel()
        return debt is not None

    def work(self, request: Request, work: Coroutine[Any, Any, Any]) -> Task[Any] | None:
        """Begin to work on a request; nothing when it needs no answer any more."""
        debt = self._open.get(request)
        if debt is None or debt.work is not None:
            work.close()
            return None
        debt.work = asyncio.get_running_loop().create_task(work)
        if debt.is_cancelled:
            debt.work.cancel()
        return debt.work

    def cancel(self, params: Any) -> None:
        """Stop the work on what the other side does not want to know any more."""
        if not isinstance(params, dict) or "requestId" not in params:
            return
        unwanted = params["requestId"]
        for request, debt in self._open.items():
            if (type(request.id), request.id) == (type(unwanted), unwanted):
                debt.is_cancelled = True
                if debt.work is not None:
                    debt.work.cancel()

    def lose(self) -> None:
        """Stop all work: there is nobody left to be answered."""
        debts, self._open = self._open, {}
        for debt in debts.values():
            if debt.work is not None:
                debt.work.cancel()


async def outcome(request: Request, work: Task[Any], within: float | None) -> Reply:
    """Wait for the work, no longer than it has time, and return what is answered."""
    await asyncio.wait([work], timeout=within)
    is_late = work.cancel()
    await asyncio.wait([work])
    if is_late:
        log.warning("an answer to %s took longer than %s s", request.method, within)
        return Reply(id=request.id, error=RpcError(INTERNAL_ERROR, "it took too long"))
    if work.cancelled():
        return Reply(id=request.id, error=RpcError(CANCELLED, "cancelled"))
    trouble = work.exception()
    if isinstance(trouble, Refused):
        return Reply(id=request.id, error=trouble.error)
    if trouble is not None:
        log.error("an answer to %s failed", request.method, exc_info=trouble)
        return Reply(id=request.id, error=RpcError(INTERNAL_ERROR, "internal error"))
    return Reply(id=request.id, result=work.result())
