"""What a refusal may mean: each code where the document lists it, and 400 only for good reasons.

JSON Schema says of a request that it is well-formed. Whether a model exists, or a cursor belongs
to a listing, it cannot say; that a well-formed request was refused as ill-formed, it can.
"""

import base64
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

Case = Any

NUL: Final = "the text contains a NUL character"


def _has(*names: str) -> Callable[[Case], bool]:
    return lambda case: set(names) <= set(case.query or {})


def _anything(_: Case) -> bool:
    return True


def _is_for_events(case: Case) -> bool:
    """Tell whether a parameter may be the stream's where a page is read, or the other way round."""
    return bool(case.operation.path.endswith("/events"))


# Why a parameter that is right by itself may be wrong where it stands.
OF_QUERIES: Final[Mapping[str, Callable[[Case], bool]]] = {
    "after": _is_for_events,
    "before": _has("before", "offset"),
    # Opaque: only those are right that a listing has given.
    "cursor": _has("cursor"),
    "detach": _has("cascade", "detach"),
    # One of its two names is required.
    "entity_id": lambda case: not {"entity_id", "session_id"} & set(case.query or {}),
    "filters": _has("filters"),
    # Two names of one parameter.
    "from": _has("from", "start_date"),
    "idempotency_key": lambda case: "Idempotency-Key" in (case.headers or {}),
    "limit": _is_for_events,
    "session_id": _has("session_id", "entity_id"),
    "to": _has("to", "end_date"),
    "since": lambda case: _has("since", "after")(case) or _is_for_events(case),
    "until": _is_for_events,
}


def _is_large(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_is_large, value.values()))
    if isinstance(value, list):
        return any(map(_is_large, value))
    return isinstance(value, int) and not -(1 << 63) <= value < 1 << 64


def _media(case: Case) -> list[dict[str, Any]]:
    return [part for part in case.body.get("parts") or () if part.get("type") == "media"]


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True


# What bodies must be beyond their schema, because readers of JSON disagree about it.
OF_BODIES: Final[Mapping[str, Callable[[Case], bool]]] = {
    "an integer exceeds 64 bits": lambda case: _is_large(case.body),
    NUL: lambda case: "\\u0000" in json.dumps(case.body),
    "it must be equal to Idempotency-Key": lambda case: "Idempotency-Key" in (case.headers or {}),
    "Invalid base64 encoded string": lambda case: any(
        not _is_base64(part["data"]) for part in _media(case) if "data" in part
    ),
    "a media part has ref or data, not both": lambda case: any(
        ("ref" in part) == ("data" in part) for part in _media(case)
    ),
    "send content or parts, not both": lambda case: (
        ("content" in case.body) == ("parts" in case.body)
    ),
    # Whether these go together depends on the agent as it is.
    "it cannot be set for an external program, which chooses its own models": _anything,
    "an agent that runs a program chooses its own models": _anything,
    "they need a default_model_id": _anything,
}


@cache
def register() -> None:
    """Put the checks beside those of Schemathesis, once."""
    import schemathesis

    schemathesis.check(refusals_are_documented)
    schemathesis.check(what_is_well_formed_is_not_called_ill_formed)


def refusals_are_documented(_: Any, response: Any, case: Case) -> bool | None:
    """Refuse a code that the document does not list for the operation and its status."""
    if response.status_code < 400 or response.request.method != case.operation.method.upper():
        return None
    told = json.loads(response.content)
    # Another protocol has words of its own, whose form the schema judges.
    if set(told) == {"status"} or "jsonrpc" in told:
        return None
    answers = case.operation.definition.raw["responses"]
    content = answers[str(response.status_code)]["content"]["application/json"]
    codes = sorted(content.get("examples", {}))
    assert told["error"] in codes, (
        f"{response.status_code} {told['error']} is not among {', '.join(codes)}"
    )
    assert told["message"]
    return None


def what_is_well_formed_is_not_called_ill_formed(_: Any, response: Any, case: Case) -> bool | None:
    """Refuse `invalid_body` and `invalid_query` for what the document allows."""
    is_asked_right = response.request.method == case.operation.method.upper()
    if response.status_code != 400 or case.meta is None or not is_asked_right:
        return None
    if not case.meta.generation.mode.is_positive:
        return None
    told = json.loads(response.content)
    if "jsonrpc" in told:
        return None
    rule = told["details"].get("rule", "")
    if told["error"] == "invalid_query":
        parameter = told["details"].get("parameter")
        assert _has_nul(case, rule) or OF_QUERIES.get(parameter, _never)(case), told
    if told["error"] == "invalid_body" and not _is_pointed(rule):
        assert OF_BODIES.get(rule, _never)(case), told
    return None


def _is_pointed(rule: str) -> bool:
    # For JSON Schema 1.0 is a whole number, and for us one that somebody has to mean.
    return rule.startswith("Expected `int") and rule.endswith("got `float`")


def _has_nul(case: Case, rule: str) -> bool:
    # A schema could say so, and would say it of every text of every route.
    return rule == NUL and "\\u0000" in json.dumps(case.query)


def _never(_: Case) -> bool:
    return False
