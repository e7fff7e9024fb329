"""Holds that tables are total: each has an entry for every member of the union it speaks of."""

from collections.abc import Iterable, Mapping
from enum import Enum
from itertools import product
from typing import get_args

from holdfast.cli import errors as cli_errors
from holdfast.config import SETTING_KEYS, setting_types
from holdfast.domain.approvals import TIGHTNESS, ApprovalMode
from holdfast.domain.calls import NEXT, CallState
from holdfast.domain.errors import HoldfastError
from holdfast.domain.events import NAMES, RETRYABLE, FailureCode, Payload
from holdfast.domain.messages import CLOSING_NOTICES, PARTS_OF, NoticeCode, Part, Role
from holdfast.domain.queries import SessionOrder
from holdfast.domain.sessions import TRANSITIONS, Status, StopReason, Verb
from holdfast.domain.tools import _WIDTH, FsTier
from holdfast.domain.turns import _STOP_TEXTS
from holdfast.engine.model_requests import _REMEDIES, CODES
from holdfast.engine.projection import REMARKS
from holdfast.ports.llm import FailureKind
from holdfast.services.session_lifecycle import VERB_BY_ENDING as ENDINGS
from holdfast.store.messages import _ROLES
from holdfast.store.session_rows import _STATUS, _STOP
from holdfast.store.sessions import _ORDER
from holdfast.wire import stream_events
from holdfast.wire.errors import STATUSES
from tests.marks import each_case


@each_case(
    ("table", "union"),
    [
        (PARTS_OF, Role),
        (NEXT, CallState),
        (TIGHTNESS, ApprovalMode),
        (_WIDTH, FsTier),
        (CODES, FailureKind),
        (_REMEDIES, FailureKind),
        (_ORDER, SessionOrder),
        (REMARKS, CLOSING_NOTICES),
        (stream_events.TABLE, get_args(Payload)),
        (stream_events.STOPS, StopReason),
        (cli_errors.EXIT_CODES, HoldfastError.__subclasses__()),
        (cli_errors.FAILURE_CODES, FailureCode),
        (cli_errors.STOP_CODES, StopReason),
        (STATUSES, HoldfastError.__subclasses__()),
    ],
)
def test_the_table_has_an_entry_for_every_member(
    table: Mapping[object, object], union: Iterable[object]
) -> None:
    assert set(table) == set(union)


@each_case(("table", "union"), [(_ROLES, Role), (_STATUS, Status), (_STOP, StopReason)])
def test_what_the_store_writes_it_can_read(table: dict[str, Enum], union: type[Enum]) -> None:
    assert table == {member.value: member for member in union}


def test_every_part_has_a_role_that_holds_it() -> None:
    held = {part for parts in PARTS_OF.values() for part in parts}

    assert held == set(get_args(Part))


def test_the_lifecycle_speaks_of_known_statuses_and_uses_every_verb() -> None:
    assert set(TRANSITIONS) <= set(product(Status, Verb))
    assert {verb for _, verb in TRANSITIONS} == set(Verb)
    assert {status for status, _ in TRANSITIONS} == set(Status)


def test_every_status_can_be_reached_from_a_new_session() -> None:
    reached = {Status.PENDING}
    for _ in Status:
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}

    assert reached == set(Status)


def test_a_failed_session_stays_failed() -> None:
    after = {after for (before, _), after in TRANSITIONS.items() if before is Status.FAILED}

    assert after == {Status.FAILED}


def test_every_ending_that_has_a_notice_has_words_for_it() -> None:
    closing = {StopReason(code.value) for code in CLOSING_NOTICES}

    assert set(_STOP_TEXTS) == closing


def test_what_closes_a_session_is_a_status_that_the_lifecycle_gives() -> None:
    assert {verb: TRANSITIONS[Status.IDLE, verb] for verb in ENDINGS.values()} == {
        verb: status for status, verb in ENDINGS.items()
    }


def test_closed_lists_name_known_codes() -> None:
    assert set(NoticeCode) >= CLOSING_NOTICES
    assert set(FailureCode) >= RETRYABLE


def test_every_event_has_a_name_of_its_own() -> None:
    assert len(NAMES) == len(get_args(Payload))
    assert [name for name in NAMES if not all(name.partition("."))] == []


def test_every_setting_has_a_place_of_its_own() -> None:
    assert set(SETTING_KEYS) == set(setting_types())
    assert len({(section, key) for section, key, _ in SETTING_KEYS.values()}) == len(SETTING_KEYS)
    variables = [variable for _, _, variable in SETTING_KEYS.values() if variable]
    assert len(set(variables)) == len(variables)
