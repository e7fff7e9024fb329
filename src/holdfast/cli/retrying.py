"""Running a call again: its turn is played here, and what came of it is printed."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.cli.beginnings import conversing
from holdfast.cli.errors import EXIT_CODES, FINDINGS, INTERRUPTED
from holdfast.cli.manners import Manner
from holdfast.cli.output import Printer
from holdfast.cli.results import result_of
from holdfast.cli.signals import Signals
from holdfast.cli.work_forms import call_form, result_form
from holdfast.cli.working import NEVER_BY_FLAG
from holdfast.domain.approvals import ApprovalMode, stricter_mode
from holdfast.domain.calls import Call
from holdfast.domain.errors import Code, Denied
from holdfast.domain.messages import ResultStatus
from holdfast.domain.sessions import Session

if TYPE_CHECKING:
    from holdfast.cli.house import House
    from holdfast.services.calls import SettlementRequest

_CODES: Final[Mapping[ResultStatus, int]] = {
    **dict.fromkeys(ResultStatus, FINDINGS),
    ResultStatus.OK: 0,
    ResultStatus.DENIED: EXIT_CODES[Denied],
}


async def retried(
    printer: Printer, holdfast: "House", call: Call, wish: "SettlementRequest", manner: Manner
) -> int:
    """Settle a call by running it again; return the exit code."""
    signals = Signals()
    try:
        with signals:
            session = await holdfast.sessions.get(holdfast.owner, call.session_id)
            _require_permitted(holdfast, session, call, manner)
            conversation = conversing(printer, holdfast, session, signals, manner)
            await holdfast.calls.settle(holdfast.owner, call.session_id, call.id, wish)
            again = await _again(holdfast, call)
            # It may have been run again before, and then what came of that is told.
            if session.settled < again.turn:
                await conversation.settle(again.turn, own=True)
    except asyncio.CancelledError:
        # Cancelled by somebody else than the person: not ours to swallow.
        if not signals.is_leaving:
            raise
        return INTERRUPTED
    if conversation.has_finished():
        return INTERRUPTED
    return await _told(printer, holdfast, call)


def _require_permitted(holdfast: "House", session: Session, call: Call, manner: Manner) -> None:
    """Refuse before anything is written what could only be denied."""
    mode = stricter_mode(session.approval, holdfast.config.approval)
    if mode is ApprovalMode.DENY:
        raise Denied(
            Code.GRANT_EXCEEDED, "The session's approval mode is deny: nothing can be run again."
        )
    is_flagged = call.name in manner.yes_to and call.name != NEVER_BY_FLAG
    if mode is not ApprovalMode.AUTO and not manner.is_attended and not is_flagged:
        raise Denied(
            Code.GRANT_EXCEEDED,
            f"Nobody is here to be asked about {call.name}; settle the call at a terminal, or add "
            f"--yes-to {call.name} where that may answer for it. Nothing was changed.",
            {"tool": call.name},
        )


async def _told(printer: Printer, holdfast: "House", call: Call) -> int:
    settled = await holdfast.calls.get(holdfast.owner, call.session_id, call.id)
    again = await _again(holdfast, call)
    result = await result_of(holdfast, again)
    if printer.is_json:
        form = call_form(settled) | {"retry": call_form(again) | result_form(result)}
        printer.document(form)
    elif result is not None and result.error is None:
        printer.line(msgspec.json.encode(result.result).decode())
    return _CODES[result.status] if result is not None else FINDINGS


async def _again(holdfast: "House", call: Call) -> Call:
    """Return the newest call that is the same one again: it has the same key."""
    newest, cursor = call, None
    while True:
        page = await holdfast.calls.list(holdfast.owner, call.session_id, cursor=cursor)
        same = [each for each in page.items if each.idempotency_key == call.idempotency_key]
        newest = same[-1] if same else newest
        if (cursor := page.next_cursor) is None:
            return newest
