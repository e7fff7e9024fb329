"""Claims: a client runs a call under a lease, which it extends, loses or gives back."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Holdfast, Session
from holdfast.domain.agents import Recovery
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.calls import Call, CallState, Settlement
from holdfast.domain.errors import Code, Conflict, Invalid, NotFound
from holdfast.domain.events import ToolProgressed, ToolRequested, ToolStarted
from holdfast.domain.messages import Notice, NoticeCode, ResultStatus
from holdfast.domain.sessions import StopReason
from holdfast.services.calls import CallAnswer
from holdfast.workers.model import ATTEMPTS_MOST, ClaimRequest
from tests.houses import current, played
from tests.marks import each_case
from tests.services.test_client_calls import (
    OK,
    a_house,
    give,
    payloads_of,
    refunding,
    requested,
    results,
    sent,
)
from tests.tooled import calls_now, outcomes

pytestmark = pytest.mark.anyio

LATER = CallAnswer(status=ResultStatus.OK, result="later")


def a_claim(worker: str = "one", **more: Any) -> ClaimRequest:
    return ClaimRequest(claim=str(uuid4()), worker=worker, **more)


async def claim(house: Holdfast, session: Session, wanted: ClaimRequest) -> Call:
    return await house.workers.claim(house.owner, session.id, "c1", wanted)


def under(wanted: ClaimRequest, answer: CallAnswer = OK) -> CallAnswer:
    return CallAnswer(
        status=answer.status, result=answer.result, error=answer.error, claim=wanted.claim
    )


async def refused(work: Any) -> Code:
    with pytest.raises(Conflict) as found:
        await work
    return found.value.code


async def lapse(house: Any, session: Session) -> None:
    """Let the lease of the session's claim run out, without waiting for it."""

    async def shorten(tx: Any) -> None:
        state = await tx.sessions.state(house.owner, session.id)
        asked = await tx.client_requests.of(state.key, "c1")
        from datetime import timedelta

        from msgspec.structs import replace

        holder = replace(asked.holder, until=asked.holder.until - timedelta(seconds=400))
        await tx.client_requests.save(state.key, "c1", replace(asked, holder=holder))

    await house.store.write(shorten)
    await house.workers.sweep()


async def test_a_claimed_call_is_started_and_answered_with_its_claim(home: Path) -> None:
    mine, other = a_claim("one"), a_claim("two")
    async with a_house(refunding(home)) as house:
        session = await sent(house)
        await requested(house, session)
        claimed = await claim(house, session, mine)
        again = await claim(house, session, mine)
        listed = await house.calls.get(house.owner, session.id, "c1")
        waiting = (await current(house, session)).waiting
        codes = [
            await refused(claim(house, session, other)),
            await refused(give(house, session, OK)),
            await refused(give(house, session, under(other))),
        ]
        answered = await give(house, session, under(mine))
        repeated = await house.calls.give_answer(house.owner, session.id, "c1", under(mine))
        late = await refused(give(house, session, under(mine, LATER)))
        rows = await played(house, session.id)
        events = await payloads_of(house, session)

    assert claimed == again == listed
    assert (claimed.state, claimed.attempt) == (CallState.STARTED, 1)
    assert claimed.claim is not None
    assert claimed.claim.worker == "one"
    assert waiting is not None
    assert waiting.call_ids == ("c1",)
    assert codes == [Code.CALL_CLAIMED] * 3
    assert (answered.state, answered.claim, repeated.is_new) == (CallState.FINISHED, None, False)
    assert late is Code.CALL_NOT_OPEN
    assert outcomes(rows) == ["refund ok"]
    (started,) = [each for each in events if isinstance(each, ToolStarted)]
    assert (started.by, started.attempt) == ("one", 1)


@each_case("effect", ["pure", "idempotent"])
async def test_a_lost_claim_on_a_call_that_may_run_twice_is_requested_again(
    home: Path, effect: str
) -> None:
    first, second = a_claim("one"), a_claim("two")
    async with a_house(refunding(home)) as house:
        session = await sent(house, effect=effect)
        before = await requested(house, session)
        await claim(house, session, first)
        await lapse(house, session)
        again = await requested(house, session)
        lost = await refused(house.workers.extend_claim(house.owner, session.id, "c1", first.claim))
        await claim(house, session, second)
        # The answer of an earlier attempt is as good.
        await give(house, session, under(first))
        rows = await played(house, session.id)
        events = await payloads_of(house, session)

    assert (again.attempt, again.deadline_at) == (2, before.deadline_at)
    assert lost is Code.LEASE_LOST
    assert outcomes(rows) == ["refund ok"]
    asked = [each.attempt for each in events if isinstance(each, ToolRequested)]
    started = [each.attempt for each in events if isinstance(each, ToolStarted)]
    assert asked == started == [1, 2]


async def test_after_some_attempts_the_call_is_unavailable(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        session = await sent(house, effect="pure")
        for _ in range(ATTEMPTS_MOST):
            await requested(house, session)
            await claim(house, session, a_claim())
            await lapse(house, session)
        rows = await played(house, session.id)

    assert outcomes(rows) == ["refund error/unavailable"]
    assert rows[-1].text == "done"


async def test_a_lost_claim_on_an_unsafe_call_is_unknown_and_a_late_answer_settles_it(
    home: Path,
) -> None:
    mine = a_claim("one")
    async with a_house(refunding(home)) as house:
        session = await sent(house)
        await requested(house, session)
        await claim(house, session, mine)
        await lapse(house, session)
        rows = await played(house, session.id)
        stop = (await current(house, session)).last_stop
        without = await refused(give(house, session, LATER))
        settled = await give(house, session, under(mine))
        repeated = await house.calls.give_answer(house.owner, session.id, "c1", under(mine))
        after = await house.read(session.id)

    assert outcomes(rows) == ["refund unknown/unknown"]
    assert stop is StopReason.INTERRUPTED
    assert without is Code.CALL_NOT_OPEN
    assert (settled.state, settled.settlement) == (CallState.SETTLED, Settlement.MARKED_DONE)
    assert not repeated.is_new
    texts = [
        part.text
        for row in after
        for part in row.parts
        if isinstance(part, Notice) and part.code is NoticeCode.CALL_SETTLED
    ]
    assert len(texts) == 1
    assert '{"refunded":true}' in texts[0]


async def test_an_agent_that_continues_gets_the_unknown_outcome(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        await house.agents.create(
            house.owner, {"name": "Clerk", "tools": [REFUND_UNSAFE], "recovery": Recovery.CONTINUE}
        )
        session = await house.open("clerk")
        await house.send(session.id, "go")
        await requested(house, session)
        await claim(house, session, a_claim())
        await lapse(house, session)
        rows = await played(house, session.id)

    assert outcomes(rows) == ["refund unknown/unknown"]
    assert rows[-1].text == "done"


REFUND_UNSAFE: dict[str, Any] = {
    "name": "refund",
    "description": "Refund an order.",
    "parameters": {"type": "object"},
}


async def test_an_extended_claim_is_kept(home: Path) -> None:
    mine = a_claim(lease_s=5)
    async with a_house(refunding(home)) as house:
        session = await sent(house)
        await requested(house, session)
        claimed = await claim(house, session, mine)
        extension = await house.workers.extend_claim(house.owner, session.id, "c1", mine.claim)
        await house.workers.sweep()
        after = await calls_now(house, session)
        await give(house, session, under(mine))
        await played(house, session.id)
        over = await refused(house.workers.extend_claim(house.owner, session.id, "c1", mine.claim))

    assert claimed.claim is not None
    assert extension.until > claimed.claim.until
    assert not extension.is_cancelled
    assert after == {"c1": CallState.STARTED}
    assert over is Code.LEASE_LOST


async def test_a_released_call_is_requested_again_whatever_its_effect(home: Path) -> None:
    mine, other = a_claim("one"), a_claim("two")
    async with a_house(refunding(home)) as house:
        session = await sent(house)
        await requested(house, session)
        await claim(house, session, mine)
        foreign = await refused(house.workers.release(house.owner, session.id, "c1", other.claim))
        released = await house.workers.release(house.owner, session.id, "c1", mine.claim)
        again = await house.workers.release(house.owner, session.id, "c1", mine.claim)
        lost = await refused(give(house, session, under(mine)))
        await claim(house, session, other)
        await give(house, session, under(other))
        rows = await played(house, session.id)

    assert foreign is lost is Code.LEASE_LOST
    assert released == again
    assert (released.state, released.attempt, released.claim) == (CallState.REQUESTED, 1, None)
    assert outcomes(rows) == ["refund ok"]


async def test_progress_of_a_claimed_call_is_an_event(home: Path) -> None:
    mine = a_claim()
    async with a_house(refunding(home)) as house:
        session = await sent(house)
        await requested(house, session)
        report = house.workers.progress
        early = await refused(report(house.owner, session.id, "c1", mine.claim, "1 of 5"))
        await claim(house, session, mine)
        for text in ("1 of 5", "2 of 5"):
            await report(house.owner, session.id, "c1", mine.claim, text, fraction=0.2)
        await give(house, session, under(mine))
        await played(house, session.id)
        events = await payloads_of(house, session)

    assert early is Code.LEASE_LOST
    # The second one came within a quarter of a second.
    assert [each for each in events if isinstance(each, ToolProgressed)] == [
        ToolProgressed(call_id="c1", text="1 of 5", fraction=0.2)  # type: ignore[arg-type]
    ]


@each_case(
    ("effect", "outcome", "state"),
    [
        ("pure", "refund error/timeout", CallState.FINISHED),
        ("unsafe", "refund unknown/unknown", CallState.UNKNOWN),
    ],
)
async def test_at_the_deadline_a_claimed_call_ends(
    home: Path, effect: str, outcome: str, state: CallState
) -> None:
    mine = a_claim()
    async with a_house(refunding(home)) as house:
        session = await sent(house, effect=effect, timeout_s=0.5)
        await requested(house, session)
        await claim(house, session, mine)
        rows = await played(house, session.id)
        states = await calls_now(house, session)
        extension = await house.workers.extend_claim(house.owner, session.id, "c1", mine.claim)
        late = await refused(claim(house, session, a_claim()))

    assert outcomes(rows) == [outcome]
    assert states == {"c1": state}
    assert extension.is_cancelled
    assert late is Code.CALL_NOT_OPEN


@each_case(
    ("effect", "outcome"),
    [("idempotent", "refund error/aborted"), ("unsafe", "refund unknown/unknown")],
)
async def test_an_interrupt_ends_a_claimed_call_and_its_worker_learns_it(
    home: Path, effect: str, outcome: str
) -> None:
    mine = a_claim()
    async with a_house(refunding(home)) as house:
        session = await sent(house, effect=effect)
        await requested(house, session)
        await claim(house, session, mine)
        await house.sessions.interrupt(house.owner, session.id)
        rows = await played(house, session.id)
        extension = await house.workers.extend_claim(house.owner, session.id, "c1", mine.claim)

    assert outcomes(rows) == [outcome]
    assert extension.is_cancelled


async def test_of_many_claims_at_once_one_is_taken(home: Path) -> None:
    claims = [a_claim(str(number)) for number in range(10)]
    async with a_house(refunding(home)) as house:
        session = await sent(house)
        await requested(house, session)
        done = await asyncio.gather(
            *(claim(house, session, each) for each in claims), return_exceptions=True
        )
        taken = [each for each, one in zip(claims, done, strict=True) if isinstance(one, Call)]
        assert len(taken) == 1
        await give(house, session, under(taken[0]))
        rows = await played(house, session.id)

    assert len(results(rows)) == 1


async def test_a_call_that_waits_for_approval_or_is_not_there_cannot_be_claimed(
    home: Path,
) -> None:
    async with a_house(refunding(home)) as house:
        session = await sent(house, mode=ApprovalMode.ASK, approval="ask")
        while not (await house.approvals.list(house.owner, session.id)).items:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        early = await refused(claim(house, session, a_claim()))
        with pytest.raises(NotFound):
            await house.workers.claim(house.owner, session.id, "c9", a_claim())
        with pytest.raises(Invalid):
            a_claim(lease_s=1)
        await house.sessions.interrupt(house.owner, session.id)

    assert early is Code.CALL_NOT_OPEN
