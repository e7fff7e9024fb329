"""Where an answer leads: what of its body names which place in a path."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.http.api.forms import AgentSession, RepoForm
from holdfast.http.openapi.schemas import Document
from holdfast.http.table import Route
from holdfast.http.v1.agents_forms import AgentForm, AgentList
from holdfast.http.v1.messages_forms import MessageForm
from holdfast.http.v1.models_forms import ModelForm
from holdfast.http.v1.sessions_forms import SessionForm, SessionList

API_REPOS: Final = "/api/repos"
API_SESSIONS: Final = "/api/sessions"
# By type: the placeholders it knows, and where in its body their values stand.
KNOWN: Final[Mapping[Any, Mapping[str, str]]] = {
    AgentForm: {"agent_id": "/id"},
    AgentList: {"agent_id": "/data/0/id"},
    AgentSession: {"id": "/id"},
    MessageForm: {"message_id": "/id", "session_id": "/session_id"},
    ModelForm: {"model_id": "/id"},
    RepoForm: {"id": "/id"},
    SessionForm: {"agent_id": "/agent_id", "session_id": "/id"},
    SessionList: {"agent_id": "/data/0/agent_id", "session_id": "/data/0/id"},
}
_LISTS: Final = frozenset({AgentList, SessionList})
# Where one word names two things, the path decides which one is meant.
_BELOW: Final[Mapping[Any, str]] = {AgentSession: API_SESSIONS, RepoForm: API_REPOS}


def links_of(route: Route, status: int, routes: Sequence[Route]) -> Document:
    """Return what can be asked next with what an answer says."""
    kind = route.gives[status]
    places = KNOWN.get(kind) if isinstance(kind, type) else None
    # From where something is made or listed; whoever reads one thing has named it already.
    if places is None or not (status == 201 or kind in _LISTS):
        return {}
    found = {
        other.name: {
            "operationId": other.name,
            "parameters": {name: f"$response.body#{places[name]}" for name in placeholders(other)},
        }
        for other in routes
        if other.name != route.name and _is_reached(other, kind, places)
    }
    if kind is RepoForm:
        found["api.sessions.open"] = {
            "operationId": "api.sessions.open",
            "requestBody": {"repoId": "$response.body#/id"},
        }
    return found


def placeholders(route: Route) -> list[str]:
    """Return the names of a route's placeholders."""
    return [part[1:-1] for part in route.path.split("/") if part.startswith("{")]


def _is_reached(other: Route, kind: Any, places: Mapping[str, str]) -> bool:
    names = placeholders(other)
    return (
        bool(names)
        and set(names) <= set(places)
        and other.path.startswith(_BELOW.get(kind, "/v1/"))
    )
