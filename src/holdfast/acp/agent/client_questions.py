"""The questions of a held session, asked at the client; the first answer, from anywhere, counts."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.acp.agent.house import House
from holdfast.acp.agent.updates import Telling
from holdfast.acp.transport.connection import Connection, Lost, Refused
from holdfast.domain.approvals import (
    ALLOW_ALWAYS,
    ALLOW_ONCE,
    Approval,
    ApprovalAnswer,
    ApprovalScope,
    ApprovalState,
    Question,
)
from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import ApprovalId, SessionId

log = logging.getLogger(__name__)

BY: Final = "acp"
REJECT_ONCE: Final = "reject_once"
REQUEST: Final = "session/request_permission"


class Outcome(Struct, frozen=True, rename="camel"):
    """Which option somebody took, or that nobody did."""

    outcome: str
    option_id: str | None = None


class Given(Struct, frozen=True):
    """The answer of a client."""

    outcome: Outcome


class Asking:
    """Asks each question once; an answer from elsewhere makes the client's one too late."""

    def __init__(
        self,
        house: House,
        connection: Connection,
        session_id: SessionId,
        start: Callable[..., asyncio.Task[None]],
    ) -> None:
        """`start` runs what waits for an answer, as long as the session is held."""
        self._house = house
        self._connection = connection
        self._session_id = session_id
        self._start = start
        self._open: dict[ApprovalId, asyncio.Task[None] | None] = {}

    async def waiting(self, telling: Telling) -> None:
        """Ask what waits, whoever's turn has asked it."""
        found = await self._house.approvals.list(
            self._house.owner, self._session_id, state=ApprovalState.WAITING
        )
        for approval in found.items:
            await self.ask(approval.id, telling)

    async def ask(self, approval_id: ApprovalId, telling: Telling) -> None:
        """Put a question to the client, unless it is there already or has its answer."""
        if approval_id in self._open:
            return
        # Before anything is waited for: the news and a new prompt may both bring it here.
        self._open[approval_id] = None
        house, session_id = self._house, self._session_id
        approval = await house.approvals.get(house.owner, session_id, approval_id)
        if approval.state is not ApprovalState.WAITING:
            return
        params = {
            "sessionId": session_id,
            "toolCall": telling.asked(approval),
            "options": offered(approval.question),
        }
        try:
            future = await self._connection.begin(REQUEST, params)
        except Lost:
            return
        self._open[approval_id] = self._start(self._heard(approval, future))

    def withdraw(self, approval_id: ApprovalId) -> None:
        """Wait no longer for an answer: there is one."""
        task = self._open.get(approval_id)
        if task is not None:
            task.cancel()

    async def _heard(self, approval: Approval, future: asyncio.Future[Any]) -> None:
        try:
            answer = answer_of(approval.question, await future)
        except Refused:
            # Whoever cannot be asked has not agreed.
            answer = ApprovalAnswer(state=ApprovalState.DENIED, by=BY)
        except Lost:
            return
        try:
            await self._house.approvals.answer(
                self._house.owner,
                self._session_id,
                approval.id,
                answer,
                digest=approval.question.digest,
            )
        # Somebody elsewhere was faster, or the turn has ended meanwhile.
        except HoldfastError as error:
            log.info("an answer came too late: %s", error.message)


def offered(question: Question) -> list[dict[str, str]]:
    """Return the answers that a question takes: those of its agent, else our own."""
    if question.choices:
        return [
            {"optionId": each.id, "name": each.name, "kind": each.kind} for each in question.choices
        ]
    once = {"optionId": ALLOW_ONCE, "name": "Allow once", "kind": ALLOW_ONCE}
    always = {"optionId": ALLOW_ALWAYS, "name": "Allow for this session", "kind": ALLOW_ALWAYS}
    never = {"optionId": REJECT_ONCE, "name": "Reject", "kind": REJECT_ONCE}
    return [once, *([always] if question.memory is not None else []), never]


def answer_of(question: Question, result: Any) -> ApprovalAnswer:
    """Return what a client's answer means; whatever is not a yes that was offered is a no."""
    denied = ApprovalAnswer(state=ApprovalState.DENIED, by=BY)
    try:
        outcome = msgspec.convert(result, Given).outcome
    except msgspec.ValidationError:
        return denied
    kinds = {each["optionId"]: each["kind"] for each in offered(question)}
    taken = outcome.option_id if outcome.outcome == "selected" else None
    kind = kinds.get(taken or "")
    choice = taken if question.choices and kind is not None else None
    if kind == ALLOW_ALWAYS and question.memory is not None:
        return ApprovalAnswer(
            state=ApprovalState.ALLOWED, by=BY, scope=ApprovalScope.SESSION, choice=choice
        )
    if kind in {ALLOW_ONCE, ALLOW_ALWAYS}:
        return ApprovalAnswer(state=ApprovalState.ALLOWED, by=BY, choice=choice)
    return msgspec.structs.replace(denied, choice=choice)
