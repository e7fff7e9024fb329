"""The lifecycle of a session, and the turn a message belongs to."""

from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from holdfast.domain.agents import AgentOverrides
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.costs import Usage
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.ids import LOCAL_OWNER
from holdfast.domain.sessions import (
    TRANSITIONS,
    TURN_CAP,
    Budget,
    OnExceed,
    SessionRequest,
    Status,
    Verb,
    admit_turn,
    cap_of,
    digest_request,
    has_waiting_turn,
    stricter_budget,
    title_of,
    transition,
)
from tests.builders import a_head, a_session, an_agent
from tests.marks import demands, each_case

OPEN = [Status.PENDING, Status.RUNNING, Status.IDLE]
CLOSED = [Status.COMPLETED, Status.CANCELLED]

# Every status in a row, every verb in a column; a word in capitals is the code of the refusal.
TABLE = """
            admit           begin           end              complete  cancel    resume          lose
pending     pending         running         TURN_NOT_RUNNING completed cancelled pending         failed
running     running         running         idle             completed cancelled running         failed
idle        idle            running         TURN_NOT_RUNNING completed cancelled idle            failed
completed   SESSION_CLOSED  SESSION_CLOSED  SESSION_CLOSED   completed completed idle            SESSION_CLOSED
cancelled   SESSION_CLOSED  SESSION_CLOSED  SESSION_CLOSED   cancelled cancelled idle            SESSION_CLOSED
failed      SESSION_FAILED  SESSION_FAILED  SESSION_FAILED   failed    failed    SESSION_FAILED  SESSION_FAILED
"""  # noqa: E501


def table() -> dict[tuple[Status, Verb], str]:
    verbs, *lines = (line.split() for line in TABLE.strip().splitlines())
    return {
        (Status(status), Verb(verb)): told
        for status, *cells in lines
        for verb, told in zip(verbs, cells, strict=True)
    }


def test_the_table_knows_every_status_and_every_verb() -> None:
    assert set(table()) == set(product(Status, Verb))


@each_case(("status", "verb"), list(product(Status, Verb)))
def test_a_verb_moves_a_session_or_is_refused_as_the_table_says(status: Status, verb: Verb) -> None:
    told = table()[status, verb]

    if told.islower():
        assert transition(status, verb) == told
        assert TRANSITIONS[status, verb] == told
    else:
        assert (status, verb) not in TRANSITIONS
        with pytest.raises(Conflict) as refused:
            transition(status, verb)
        assert refused.value.code is Code[told]
        assert refused.value.details["status"] is status


def refusal(status: Status, verb: Verb) -> dict[str, object]:
    with pytest.raises(Conflict) as refused:
        transition(status, verb)
    return refused.value.body()


def test_a_failed_session_is_resumed_by_a_fork() -> None:
    assert refusal(Status.FAILED, Verb.RESUME) == {
        "error": Code.SESSION_FAILED,
        "message": "The session has lost its agent and cannot continue; "
        "fork it to continue from here.",
        "details": {"status": "failed", "remedy": "fork"},
    }


@each_case("status", CLOSED)
def test_a_closed_session_takes_no_message_until_it_is_resumed(status: Status) -> None:
    assert refusal(status, Verb.ADMIT) == {
        "error": Code.SESSION_CLOSED,
        "message": f"The session is {status}; resume it first.",
        "details": {"status": status, "remedy": "resume"},
    }
    assert transition(transition(status, Verb.RESUME), Verb.ADMIT) is Status.IDLE


def test_a_turn_that_does_not_run_cannot_end() -> None:
    assert refusal(Status.IDLE, Verb.END) == {
        "error": Code.TURN_NOT_RUNNING,
        "message": "No turn is running; end requires one.",
        "details": {"status": "idle"},
    }


@given(st.lists(st.sampled_from(Verb), max_size=30))
def test_no_history_leaves_the_lifecycle(verbs: list[Verb]) -> None:
    status = Status.PENDING
    for verb in verbs:
        before = status
        try:
            status = transition(before, verb)
        except Conflict:
            continue
        assert table()[before, verb] == status
        assert before is not Status.FAILED or status is Status.FAILED
        assert status is not Status.PENDING or before is Status.PENDING
        assert status is not Status.RUNNING or Status.RUNNING is before or verb is Verb.BEGIN
        assert before not in CLOSED or status is before or verb is Verb.RESUME


@each_case("status", Status)
@each_case("verb", [Verb.RESUME, Verb.COMPLETE, Verb.CANCEL])
def test_a_retried_verb_gets_the_first_answer(status: Status, verb: Verb) -> None:
    try:
        once = transition(status, verb)
    except Conflict:
        return

    assert transition(once, verb) is once


class Notebook(RuleBasedStateMachine):
    """Messages arrive, turns begin and end, in any order that the lifecycle allows."""

    def __init__(self) -> None:
        super().__init__()
        self.head = a_head()
        self.sent: list[int] = []
        self.played: list[int] = []

    @precondition(lambda self: self.head.status in OPEN)
    @rule()
    def send(self) -> None:
        before, self.head = self.head, admit_turn(self.head)
        self.sent.append(self.head.turn)
        assert self.head == msgspec.structs.replace(before, turn=self.head.turn)
        assert self.head.turn >= before.turn

    @precondition(lambda self: self.head.status is not Status.RUNNING)
    @precondition(lambda self: has_waiting_turn(self.head))
    @rule()
    def begin(self) -> None:
        self.move(Verb.BEGIN)
        self.played.append(self.head.settled + 1)

    @precondition(lambda self: self.head.status is Status.RUNNING)
    @rule()
    def end(self) -> None:
        self.move(Verb.END, settled=self.head.settled + 1)

    @precondition(lambda self: self.head.status is not Status.RUNNING)
    @rule(verb=st.sampled_from([Verb.COMPLETE, Verb.CANCEL, Verb.RESUME]))
    def close_or_resume(self, verb: Verb) -> None:
        self.move(verb)

    def move(self, verb: Verb, **changes: int) -> None:
        self.head = msgspec.structs.replace(
            self.head, status=transition(self.head.status, verb), **changes
        )

    @invariant()
    def every_message_is_in_a_turn_and_turns_have_no_holes(self) -> None:
        assert set(self.sent) == set(range(1, self.head.turn + 1))
        assert self.sent == sorted(self.sent)

    @invariant()
    def turns_are_played_once_and_in_order(self) -> None:
        running = self.head.status is Status.RUNNING
        assert self.played == list(range(1, self.head.settled + running + 1))

    @invariant()
    def at_most_one_turn_waits_behind_the_one_that_runs(self) -> None:
        running = self.head.status is Status.RUNNING
        assert 0 <= self.head.turn - self.head.settled <= 1 + running
        waits = self.head.turn > self.head.settled
        assert has_waiting_turn(self.head) == (waits and self.head.status in OPEN)


def test_queued_messages_are_one_turn_and_no_turn_is_lost() -> None:
    Notebook.TestCase().runTest()


@each_case(
    ("status", "turn"),
    [(Status.PENDING, 4), (Status.IDLE, 4), (Status.RUNNING, 5)],
)
def test_a_message_belongs_to_the_next_turn_that_has_not_begun(status: Status, turn: int) -> None:
    head = a_head(status=status, settled=3, turn=3)

    assert admit_turn(head) == a_head(status=status, settled=3, turn=turn)


@each_case("status", [*CLOSED, Status.FAILED])
def test_an_ended_session_admits_nothing_and_plays_nothing(status: Status) -> None:
    head = a_head(status=status, settled=3, turn=4)

    assert not has_waiting_turn(head)
    with pytest.raises(Conflict):
        admit_turn(head)


@each_case(
    ("text", "title"),
    [
        ("Fix the build", "Fix the build"),
        ("  Fix\n\tthe \u2003 build  ", "Fix the build"),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 59 + "…"),
        ("👩 " * 100, "👩 " * 29 + "👩" + "…"),
        ("", None),
        (" \n ", None),
    ],
)
def test_the_first_message_gives_the_title(text: str, title: str | None) -> None:
    assert title_of(text) == title


@given(st.text())
def test_a_title_is_one_line_of_at_most_sixty_characters(text: str) -> None:
    title = title_of(text)

    if title is None:
        assert not text.strip()
    else:
        assert 1 <= len(title) <= 60
        assert " ".join(title.split()) == title
        assert " ".join(text.split()).startswith(title.removesuffix("…"))


@each_case(
    ("wanted", "cap"), [(None, 50), (0, 50), (-1, 50), (1, 1), (50, 50), (51, 51), (10**6, 10**6)]
)
def test_the_turn_cap_is_fifty_unless_a_number_above_zero_is_given(
    wanted: int | None, cap: int
) -> None:
    assert cap_of(wanted) == cap


def test_a_session_opens_pending_capped_and_asking() -> None:
    session = a_session()

    assert (session.status, session.turn, session.settled) == (Status.PENDING, 0, 0)
    assert (session.turn_cap, session.approval) == (TURN_CAP, ApprovalMode.ASK)
    assert (session.budget, session.forked_from) == (None, None)


def test_a_new_notebook_has_counted_nothing() -> None:
    counters = {
        name: kept
        for name, kept in msgspec.structs.asdict(a_head(updated_at=0)).items()
        if type(kept) is int
    }

    assert set(counters.values()) == {0}
    session = a_session()
    assert (session.usage, session.microcents) == (Usage(), 0)
    assert (session.message_count, session.last_event) == (0, 0)


def test_a_budget_pauses_unless_told_otherwise() -> None:
    assert Budget(microcents=1).on_exceed is OnExceed.PAUSE


@demands("S0-001c")
def test_a_session_cannot_change_its_agent() -> None:
    session = a_session()

    with pytest.raises(AttributeError):
        session.agent = an_agent(name="Other")  # type: ignore[misc]


@each_case(
    ("stored", "configured", "granted", "held_to"),
    [
        (None, None, 0, None),
        (10, None, 0, 10),
        (None, 10, 0, 10),
        (10, 5, 0, 5),
        (5, 10, 0, 5),
        # Somebody has said yes to five more since the session was opened with ten.
        (15, 5, 5, 10),
        (15, 20, 5, 15),
        # Nought is no budget of its own, and takes no other away.
        (0, 10, 0, 10),
    ],
)
def test_the_stricter_budget_holds_and_what_was_granted_is_on_top(
    stored: int | None, configured: int | None, granted: int, held_to: int | None
) -> None:
    def budget(most: int | None) -> Budget | None:
        return None if most is None else Budget(microcents=most)

    assert stricter_budget(budget(stored), budget(configured), granted) == budget(held_to)


WARN, PAUSE, FAIL = OnExceed.WARN, OnExceed.PAUSE, OnExceed.FAIL


@each_case(
    ("stored", "configured", "held_to"),
    [
        ((5, WARN), (10, WARN), (5, WARN)),
        ((5, WARN), (10, PAUSE), (10, PAUSE)),
        ((5, WARN), (10, FAIL), (10, FAIL)),
        ((5, PAUSE), (10, WARN), (5, PAUSE)),
        ((20, PAUSE), (10, FAIL), (10, FAIL)),
        ((20, FAIL), (10, PAUSE), (10, FAIL)),
    ],
)
def test_a_session_cannot_weaken_what_happens_at_the_configured_budget(
    stored: tuple[int, OnExceed], configured: tuple[int, OnExceed], held_to: tuple[int, OnExceed]
) -> None:
    def budget(said: tuple[int, OnExceed]) -> Budget:
        return Budget(microcents=said[0], on_exceed=said[1])

    assert stricter_budget(budget(stored), budget(configured), 0) == budget(held_to)


def test_a_request_is_recognised_by_a_digest_of_before_an_upgrade() -> None:
    request = SessionRequest(title="Sums", tags=("a",), turn_cap=7)

    digest = digest_request(LOCAL_OWNER, "clerk", request.identity())

    # As computed by the version that knew no overrides.
    assert digest.hex() == "db40e20b1b29231258564b4f3e1f48a39672b847d9979e1d9969b0d63836b084"
    overridden = replace(request, overrides=AgentOverrides(temperature=0.5))
    assert digest_request(LOCAL_OWNER, "clerk", overridden.identity()) != digest
