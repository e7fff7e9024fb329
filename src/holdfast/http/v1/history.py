"""History: what agents say they did, wherever they ran, and what all of it comes to."""

from typing import Any, Final
from urllib.parse import quote

import msgspec

from holdfast.domain.errors import Code
from holdfast.domain.tokens import Scope
from holdfast.http.answers import Answer
from holdfast.http.table import Asked, NoQuery, Route
from holdfast.http.v1.history_bodies import CorrectionPost, RestorationPost, SubmissionPost
from holdfast.http.v1.history_forms import (
    CheckpointQuery,
    ClaimsQuery,
    HistoryList,
    HistoryPageQuery,
    PastQuery,
    RemovalQuery,
    history_list,
)
from holdfast.http.v1.payloads import (
    Payload,
    arguments,
    chosen_key,
    key_of,
    payload,
    source_of,
)
from holdfast.observations.queries import CheckpointState, Correction, HistoryQuery, SubmitResult
from holdfast.services.history_forms import (
    HistoryForm,
    ObservationList,
    RemovalForm,
    history_form,
    observation_list,
    removal_form,
)

HISTORY: Final = "/v1/history"
SESSION: Final = f"{HISTORY}/{{session_key}}"
WRITING: Final = (Code.IDEMPOTENCY_MISMATCH, Code.RATE_LIMITED, Code.SCHEMA_VALIDATION_FAILED)
SUBMITTED: Final = {201: ("location",), 200: ("idempotency-replayed", "location")}


async def submit(asked: Asked[NoQuery, Any]) -> Answer:
    """Take a claim about a session."""
    key = key_of(asked)
    done = await asked.house.observations.submit(
        asked.owner, asked.body, idempotency_key=key, source=source_of(asked)
    )
    return submitted(done, _place(asked.body["session_id"]))


async def query(asked: Asked[HistoryPageQuery, None]) -> Answer:
    """List sessions."""
    wanted = msgspec.convert(asked.query, HistoryQuery, from_attributes=True)
    page = await asked.house.observations.query(asked.owner, wanted, cursor=asked.query.cursor)
    return Answer(content=history_list(page))


async def show(asked: Asked[PastQuery, None]) -> Answer:
    """Return what is known of a session."""
    found = await asked.house.observations.show(
        asked.owner, _key(asked), at=asked.query.at, at_ingested=asked.query.at_ingested
    )
    return Answer(content=history_form(found), has_etag=True)


async def list_observations(asked: Asked[ClaimsQuery, None]) -> Answer:
    """Return the claims about a session."""
    page = await asked.house.observations.list_observations(
        asked.owner, _key(asked), limit=asked.query.limit, cursor=asked.query.cursor
    )
    return Answer(content=observation_list(page))


async def read_checkpoint(asked: Asked[CheckpointQuery, None]) -> Answer:
    """Return what was kept at a checkpoint."""
    found = await asked.house.observations.checkpoint(
        asked.owner,
        _key(asked),
        asked.path["checkpoint"],
        timestamp=asked.query.timestamp,
        at=asked.query.at,
    )
    return Answer(content=found, has_etag=True)


async def correct(asked: Asked[NoQuery, Payload]) -> Answer:
    """Put one field of a session's history right."""
    key = key_of(asked)
    correction = Correction(session_id=_key(asked), **asked.body)
    done = await asked.house.observations.correct(
        asked.owner, correction, idempotency_key=key, source=source_of(asked)
    )
    return submitted(done, _place(_key(asked)))


async def delete(asked: Asked[RemovalQuery, None]) -> Answer:
    """Hide the history of a session."""
    done = await asked.house.observations.delete(
        asked.owner,
        _key(asked),
        reason=asked.query.reason,
        idempotency_key=chosen_key(asked, asked.query.idempotency_key),
        source=source_of(asked),
    )
    return Answer(content=removal_form(done))


async def restore(asked: Asked[NoQuery, Payload]) -> Answer:
    """Show the history of a session again."""
    key = key_of(asked)
    done = await asked.house.observations.restore(
        asked.owner,
        _key(asked),
        reason=asked.body.get("reason"),
        idempotency_key=key,
        source=source_of(asked),
    )
    return Answer(content=removal_form(done))


def submitted(done: SubmitResult, location: str) -> Answer:
    """Return what became of a claim: 201, or 200 for one that was made before."""
    repeated = {"idempotency-replayed": "true"} if done.deduplicated else {}
    status = 200 if done.deduplicated else 201
    return Answer(status=status, content=done, headers={"location": location, **repeated})


def _key(asked: Asked[Any, Any]) -> str:
    return asked.path["session_key"]


def _place(session_id: str) -> str:
    return f"{HISTORY}/{quote(session_id, safe='')}"


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="POST",
        path=HISTORY,
        name="history.submit",
        summary="Write down what happened in a session.",
        description=(
            "It is on disk when it is answered, and every later reading sees it. What was said "
            "last, or under the same key, is not written again. Keys beyond these are kept."
        ),
        act=submit,
        needs=Scope.WRITE,
        body=SubmissionPost,
        reads=payload,
        gives={201: SubmitResult, 200: SubmitResult},
        tells=SUBMITTED,
        refuses=WRITING,
        examples={
            "body": {
                "session_id": "abc123",
                "actions": [{"type": "create_feature_unit", "result": "success"}],
                "started_at": "2025-12-31T11:00:00Z",
            }
        },
    ),
    Route(
        method="GET",
        path=HISTORY,
        name="history.query",
        summary="List sessions: those that were told of, and those that are hosted here.",
        act=query,
        needs=Scope.READ,
        query=HistoryPageQuery,
        gives={200: HistoryList},
        refuses=(Code.INVALID_CURSOR, Code.INVALID_INPUT, Code.SCHEMA_VALIDATION_FAILED),
    ),
    Route(
        method="GET",
        path=SESSION,
        name="history.show",
        summary="Return what is known of a session, or was at a moment, with its newest claims.",
        act=show,
        needs=Scope.READ,
        query=PastQuery,
        gives={200: HistoryForm, 304: None},
        tells={200: ("etag",), 304: ("etag",)},
        refuses=(Code.ENTITY_NOT_FOUND, Code.SCHEMA_VALIDATION_FAILED),
    ),
    Route(
        method="DELETE",
        path=SESSION,
        name="history.delete",
        summary="Hide the history of a session; it can be restored.",
        act=delete,
        needs=Scope.WRITE,
        query=RemovalQuery,
        gives={200: RemovalForm},
        refuses=(Code.ENTITY_NOT_FOUND, *WRITING),
    ),
    Route(
        method="POST",
        path=f"{SESSION}/restore",
        name="history.restore",
        summary="Show the history of a session again.",
        act=restore,
        needs=Scope.WRITE,
        body=RestorationPost,
        body_may_be_missing=True,
        reads=arguments((), ("reason",)),
        gives={200: RemovalForm},
        refuses=(Code.ENTITY_NOT_FOUND, *WRITING),
    ),
    Route(
        method="POST",
        path=f"{SESSION}/correct",
        name="history.correct",
        summary="Put one field of a session's history right; it outweighs what others say.",
        act=correct,
        needs=Scope.WRITE,
        body=CorrectionPost,
        reads=arguments(("field", "value"), ("reason",)),
        gives={201: SubmitResult, 200: SubmitResult},
        tells=SUBMITTED,
        refuses=(Code.ENTITY_NOT_FOUND, *WRITING),
        examples={"body": {"field": "ended_at", "value": "2025-12-31T12:00:00Z"}},
    ),
    Route(
        method="GET",
        path=f"{SESSION}/checkpoints/{{checkpoint}}",
        name="history.checkpoint",
        summary="Return what was kept at a checkpoint; of several of a name, the latest.",
        act=read_checkpoint,
        needs=Scope.READ,
        query=CheckpointQuery,
        gives={200: CheckpointState, 304: None},
        tells={200: ("etag",), 304: ("etag",)},
        refuses=(
            Code.CHECKPOINT_NOT_FOUND,
            Code.ENTITY_NOT_FOUND,
            Code.SCHEMA_VALIDATION_FAILED,
        ),
    ),
    Route(
        method="GET",
        path=f"{SESSION}/observations",
        name="history.observations",
        summary="List every claim about a session as it was made, newest first.",
        act=list_observations,
        needs=Scope.READ,
        query=ClaimsQuery,
        gives={200: ObservationList},
        refuses=(Code.ENTITY_NOT_FOUND, Code.INVALID_CURSOR),
    ),
)
