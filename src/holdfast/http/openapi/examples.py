"""One example of each response type, as it is sent over the wire."""

from collections.abc import Mapping
from typing import Any, Final

_ENTITY: Final = "ent_31ed4722e1f7ffa6ea9a9ed8"
_OBSERVATION: Final = "obs_4f6122a30d2ef3d0db94b0a3c8b1430a"
_STARTED: Final = "2025-12-31T11:00:00Z"
_OBSERVED_AT: Final = "2026-01-02T03:04:05.678Z"
_FIELDS: Final[dict[str, Any]] = {
    "session_id": "abc123",
    "actions": [{"type": "create_feature_unit", "result": "success"}],
    "started_at": _STARTED,
}
_CLAIM: Final[dict[str, Any]] = {
    "id": _OBSERVATION,
    "owner": "local",
    "entity_type": "agent_session",
    "entity_id": _ENTITY,
    "session_key": "abc123",
    "ordinal": 1,
    "fields": _FIELDS,
    "content_hash": "6b3ae90e760788a70594e7cba07bd2fec49c123c75d89d662f68a50cf3657750",
    "kind": "submit",
    "priority": 100,
    "source": "curl/8.5.0",
    "observed_at": _OBSERVED_AT,
    "created_at": _OBSERVED_AT,
    "idempotency_key": None,
}
_SNAPSHOT: Final[dict[str, Any]] = {
    **_FIELDS,
    "checkpoints": [
        {"name": "spec_complete", "timestamp": "2025-12-31T11:15:00Z", "state": {"spec": "ready"}}
    ],
    "outcomes": [],
}
_FROM: Final = [_OBSERVATION]
_KNOWN: Final[dict[str, Any]] = {
    "entity_id": _ENTITY,
    "entity_type": "agent_session",
    "schema_version": "v1",
    "snapshot": _SNAPSHOT,
    "provenance": {
        "session_id": _FROM,
        "actions": _FROM,
        "checkpoints": _FROM,
        "outcomes": [],
        "started_at": _FROM,
    },
    "provenance_items": {"actions": [_FROM], "checkpoints": [_FROM], "outcomes": []},
    "observation_count": 1,
    "last_observation_at": _OBSERVED_AT,
    "hosted": False,
    "warnings": [],
}
_DECISION: Final[dict[str, Any]] = {
    **_KNOWN,
    "entity_id": "ent_f40e96b591389422f2855c55",
    "entity_type": "agent_decision",
    "snapshot": {
        "decision": "Use SQLite by default",
        "rationale": "Nothing has to be installed.",
        "timestamp": "2025-12-31T11:20:00Z",
    },
    "provenance": {"decision": _FROM, "rationale": _FROM, "timestamp": _FROM},
    "provenance_items": {},
}
_TIMELINE_EVENT: Final[dict[str, Any]] = {
    "id": "tle_9b54bdb56286bef34e866588",
    "timestamp": "2025-12-31T11:15:00.000Z",
    "event_type": "CheckpointReached",
    "description": "Checkpoint: spec_complete",
    "entity_id": _ENTITY,
    "entity_type": "agent_session",
    "session_id": "abc123",
    "source_field": "checkpoints",
    "provenance": _FROM,
    "details": {"name": "spec_complete", "has_state": True},
}
_PAGE: Final[dict[str, Any]] = {"total": 1, "next_cursor": None}
HISTORY_EXAMPLES: Final[Mapping[str, Any]] = {
    "CheckpointState": {
        "session_id": "abc123",
        "name": "spec_complete",
        "timestamp": "2025-12-31T11:15:00Z",
        "state": {"spec": "ready"},
        "has_state": True,
        "provenance": _FROM,
    },
    "EntityList": {"entities": [_DECISION], **_PAGE},
    "HistoryForm": {**_KNOWN, "observations": [_CLAIM], "observations_total": 1},
    "HistoryList": {"data": [_KNOWN], **_PAGE},
    "ObservationList": {"observations": [_CLAIM], **_PAGE},
    "RemovalForm": {"entity_id": _ENTITY, "observation_id": _OBSERVATION, "deleted": True},
    "SubmitResult": {
        "entity_id": _ENTITY,
        "observation_id": _OBSERVATION,
        "observation_count": 1,
        "action": "created",
        "deduplicated": False,
        "warnings": [],
    },
    "TimelineForm": {"events": [_TIMELINE_EVENT], **_PAGE},
}
_AGENT: Final = "019b7ca9-8f2e-7111-8aaa-000000000001"
_SESSION: Final = "019b7ca9-8f2e-7222-8aaa-000000000002"
_ZONE_AT: Final = 1_767_323_045_678
_ZONE: Final = f"agent:{_AGENT}:current"
_ARCHIVE: Final = f"agent:{_AGENT}:archive:{_ZONE_AT}"
_GENERATION: Final = "8296baa9455e3e70"
_LINE: Final = '{"type":"user","text":"hello"}'
_FILE: Final[dict[str, Any]] = {
    "name": "output",
    "size": 31,
    "lines": 1,
    "created_ms": _ZONE_AT,
    "modified_ms": _ZONE_AT,
    "generation": _GENERATION,
}
_LINES: Final[dict[str, Any]] = {
    "lines": [_LINE],
    "start": 0,
    "total": 1,
    "generation": _GENERATION,
    "torn": False,
    "tail_open": False,
}
_NAMED: Final[dict[str, Any]] = {"archive_zoneid": _ARCHIVE, "archived_at_ms": _ZONE_AT}
_SUMMARY: Final[dict[str, Any]] = {
    **_NAMED,
    "preview": "hello",
    "node_count": 1,
    "size": 31,
    "lines": 1,
    "has_state": False,
    "has_output": True,
    "schema_version": None,
}
ZONE_EXAMPLES: Final[Mapping[str, Any]] = {
    "ArchiveForm": {**_NAMED, "content": None, "files": [_FILE]},
    "ArchiveList": {"data": [_SUMMARY], "next_cursor": None},
    "ArchivedForm": {**_NAMED, "files": {"output": 31}},
    "DeletedForm": {"deleted": True},
    "DeskForm": {"zone": _ZONE, "session_id": _SESSION, "files": [_FILE]},
    "LinesForm": _LINES,
    "OutputAppendedForm": {"zone": _ZONE, "offset": 0, "bytes_written": 31},
    "ReplayForm": {**_LINES, "source": "tail", "nodes": [], "overlay": {}, "problem": None},
    "RestoredForm": {"zone": _ZONE, "restored_from": _ARCHIVE, "displaced": None},
    "StateForm": {"zone": _ZONE, "content": None, "modified_ms": None},
    "StateWrittenForm": {"zone": _ZONE, "bytes_written": 19, "modified_ms": _ZONE_AT},
}
_AT: Final = "2026-01-02T03:04:05.678901Z"
_LATER: Final = "2026-01-02T03:04:07.000123Z"
_MESSAGE: Final = "019b7ca9-8f2e-7333-8aaa-000000000003"
_EVENT: Final = "019b7ca9-8f2e-7444-8aaa-000000000004"
_APPROVAL: Final = "019b7ca9-8f2e-7555-8aaa-000000000005"
_REPO: Final = "019b7ca9-8f2e-7666-8aaa-000000000006"
_MODEL: Final = "a006915b-6930-590c-b036-ee9a12b3b96d"
_USAGE: Final[dict[str, Any]] = {
    "input_tokens": 12,
    "cached_input_tokens": 0,
    "output_tokens": 5,
    "reasoning_tokens": 0,
}
_PROGRAM: Final[dict[str, Any]] = {
    "preset": "gemini",
    "title": "Gemini CLI",
    "path": None,
    "version": None,
    "install": "npm install -g @google/gemini-cli",
    "runtime": {
        "type": "acp",
        "command": "gemini",
        "args": ["--acp"],
        "env_names": ["GEMINI_API_KEY"],
        "options": {"preset": "gemini"},
    },
}
_AGENT_FORM: Final[dict[str, Any]] = {
    "id": _AGENT,
    "slug": "code-assistant",
    "name": "Code assistant",
    "description": None,
    "system_prompt": "You are terse.",
    "default_model_id": _MODEL,
    "fallback_model_ids": [],
    "temperature": 0.2,
    "max_tokens": None,
    "tools": ["read_file"],
    "tags": ["demo"],
    "runtime": {"type": "llm"},
    "grant": {"fs": "sandboxed", "commands": [], "command_globs": [], "domains": []},
    "recovery": "stop",
    "status": "active",
    "created_at": _AT,
    "updated_at": _AT,
}
_SESSION_FORM: Final[dict[str, Any]] = {
    "id": _SESSION,
    "agent_id": _AGENT,
    "agent": {
        "slug": "code-assistant",
        "name": "Code assistant",
        "runtime": "llm",
        "model_ids": [_MODEL],
    },
    "title": "Sums",
    "tags": ["demo"],
    "model_id": None,
    "status": "completed",
    "created_at": _AT,
    "started_at": _AT,
    "finished_at": _LATER,
    "updated_at": _LATER,
    "state": "idle",
    "turn": 1,
    "settled": 1,
    "last_stop": "stop",
    "reason": None,
    "repo_id": None,
    "forked_from": None,
    "turn_cap": 50,
    "approval": "ask",
    "context": {
        "working_dir": "/srv/work/sums",
        "active_file": None,
        "selection": None,
        "git_ref": None,
        "fs_scope_tier": "sandboxed",
        "variables": {},
    },
    "budget": None,
    "usage": _USAGE,
    "cost": {"microcents": 4_200, "priced": True},
    "message_count": 2,
    "last_event": 7,
    "metadata": {},
}
_MESSAGE_FORM: Final[dict[str, Any]] = {
    "id": _MESSAGE,
    "session_id": _SESSION,
    "sequence": 1,
    "role": "user",
    "content": {"text": "How much is 2+2?"},
    "tool_call_id": None,
    "created_at": _AT,
    "turn": 1,
    "model_id": None,
}
_EVENT_FORM: Final[dict[str, Any]] = {
    "id": _EVENT,
    "session_id": _SESSION,
    "sequence": 2,
    "event_type": "message.created",
    "data": {"message_id": _MESSAGE, "role": "user", "message_sequence": 1, "turn": 1},
    "created_at": _AT,
}
_MODEL_FORM: Final[dict[str, Any]] = {
    "id": _MODEL,
    "provider": "offline",
    "name": "holdfast",
    "display_name": None,
    "context_window": None,
    "max_output": None,
    "prices": {"input": 0, "output": 0, "cache_read": 0, "cache_write": 0},
    "priced": True,
    "source": "catalogue",
}
_APPROVAL_FORM: Final[dict[str, Any]] = {
    "id": _APPROVAL,
    "session_id": _SESSION,
    "tool_call_id": "call_1",
    "question": "Run `ls -l`?",
    "tool": "run_command",
    "class": "process",
    "covers": "ls -l",
    "preview": {},
    "amount": None,
    "arguments": {"command": "ls", "args": ["-l"]},
    "digest": "5f2b",
    "options": [{"id": "allow_once", "name": "Allow once", "kind": "allow_once"}],
    "state": "waiting",
    "scope": None,
    "answered_by": None,
    "note": None,
    "created_at": _AT,
    "expires_at": None,
    "answered_at": None,
}
_CALL_FORM: Final[dict[str, Any]] = {
    "id": "call_1",
    "session_id": _SESSION,
    "turn": 1,
    "name": "run_command",
    "arguments": {"command": "ls", "args": ["-l"]},
    "effect": "unsafe",
    "state": "unknown",
    "settled": None,
    "idempotency_key": "b1946ac9",
    "started_at": _AT,
    "ended_at": None,
    "message_sequence": 2,
    "result_sequence": 3,
}
_SPENT: Final[dict[str, Any]] = {
    "requests": 1,
    "usage": _USAGE,
    "cost_microcents": 4_200,
    "unpriced_requests": 0,
}
_REPO_FORM: Final[dict[str, Any]] = {
    "id": _REPO,
    "name": "sums",
    "path": "/srv/work/sums",
    "createdAt": _AT,
}
_AGENT_SESSION: Final[dict[str, Any]] = {
    "id": _SESSION,
    "repoId": _REPO,
    "status": "active",
    "createdAt": _AT,
    "updatedAt": _LATER,
    "title": None,
    "metadata": {},
    "process": {"state": "not_started", "exitCode": None},
    "turn": 1,
    "settled": 1,
    "lastSequence": 2,
}
_AGENT_MESSAGE: Final[dict[str, Any]] = {
    "id": _MESSAGE,
    "sessionId": _SESSION,
    "role": "agent",
    "content": {"type": "text", "text": "4", "partial": False},
    "timestamp": _LATER,
    "sequence": 2,
    "turn": 1,
}
_HIT_FORM: Final[dict[str, Any]] = {
    "session_id": _SESSION,
    "agent_id": _AGENT,
    "message_id": _MESSAGE,
    "message_sequence": 2,
    "turn": 1,
    "role": "assistant",
    "snippet": "The [tide] is high at noon.",
    "score": 0.1667,
    "created_at": _AT,
    "observation_id": None,
}


def _page(*members: Any) -> dict[str, Any]:
    return {"data": list(members), "next_cursor": None}


EXAMPLES: Final[Mapping[str, Any]] = {
    **HISTORY_EXAMPLES,
    **ZONE_EXAMPLES,
    "AgentForm": _AGENT_FORM,
    "AgentList": _page(_AGENT_FORM),
    "AgentMessage": _AGENT_MESSAGE,
    "AgentSession": _AGENT_SESSION,
    "AgentSessionList": {"sessions": [_AGENT_SESSION], "total": 1, "limit": 20, "offset": 0},
    "AgentSessionWhole": {**_AGENT_SESSION, "repo": _REPO_FORM, "messages": [_AGENT_MESSAGE]},
    "ApprovalForm": _APPROVAL_FORM,
    "ApprovalList": _page(_APPROVAL_FORM),
    "CallForm": _CALL_FORM,
    "CallList": _page(_CALL_FORM),
    "Compacted": {"compacted": True, "session": _SESSION_FORM},
    "CostList": {"data": [{"key": _MODEL, **_SPENT}], "total": _SPENT, "next_cursor": None},
    "DefaultsForm": {"model": "offline:holdfast", "approval": "ask", "tools": ["read_file"]},
    "KnownProgramList": _page(_PROGRAM),
    "ErrorForm": {
        "error": "session_not_found",
        "message": "There is no such session; GET /v1/sessions lists yours.",
        "details": {},
    },
    "EventForm": _EVENT_FORM,
    "EventList": {**_page(_EVENT_FORM), "gaps": []},
    "Health": {"status": "ok"},
    "HitForm": _HIT_FORM,
    "HitList": _page(_HIT_FORM),
    "Exported": {"target": "plan.relavium.yaml", "sequence": 12},
    "Interrupted": {"session": _SESSION_FORM, "interrupted": True, "turn": 1},
    "MessageForm": _MESSAGE_FORM,
    "MessageList": _page(_MESSAGE_FORM),
    "ModelForm": _MODEL_FORM,
    "ModelList": _page(_MODEL_FORM),
    "PromptAccepted": {"accepted": True, "messageId": _MESSAGE, "sequence": 1, "turn": 1},
    "RepoForm": _REPO_FORM,
    "RepoList": {"repos": [_REPO_FORM]},
    "Resumed": {**_SESSION_FORM, "turns_left": 49},
    "SessionForm": _SESSION_FORM,
    "SessionList": _page(_SESSION_FORM),
    "Verified": {"session_id": _SESSION, "messages": 2, "head": "0" * 64, "faults": []},
}
