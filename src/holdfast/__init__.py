"""Holdfast: the durable session layer for AI agents.

Names are loaded when they are first used, because the command line must start fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from holdfast.bootstrap import Holdfast as Holdfast
    from holdfast.bootstrap import open_holdfast as open_holdfast
    from holdfast.config.values import Config as Config
    from holdfast.domain.agents import Agent as Agent
    from holdfast.domain.contexts import SessionContext as SessionContext
    from holdfast.domain.errors import Conflict as Conflict
    from holdfast.domain.errors import Denied as Denied
    from holdfast.domain.errors import HoldfastError as HoldfastError
    from holdfast.domain.errors import Internal as Internal
    from holdfast.domain.errors import Invalid as Invalid
    from holdfast.domain.errors import LimitReached as LimitReached
    from holdfast.domain.errors import NotFound as NotFound
    from holdfast.domain.errors import StorageFull as StorageFull
    from holdfast.domain.errors import Unavailable as Unavailable
    from holdfast.domain.events import Event as Event
    from holdfast.domain.events import Gap as Gap
    from holdfast.domain.events import StepDelta as StepDelta
    from holdfast.domain.events import TurnEnded as TurnEnded
    from holdfast.domain.ids import SessionId as SessionId
    from holdfast.domain.messages import Message as Message
    from holdfast.domain.messages import Role as Role
    from holdfast.domain.messages import Text as Text
    from holdfast.domain.openings import SessionRequest as SessionRequest
    from holdfast.domain.queries import AgentQuery as AgentQuery
    from holdfast.domain.queries import SessionQuery as SessionQuery
    from holdfast.domain.sessions import OnBusy as OnBusy
    from holdfast.domain.sessions import Session as Session
    from holdfast.domain.sessions import Status as Status
    from holdfast.domain.sessions import StopReason as StopReason
    from holdfast.execution.local import Scope as Scope
    from holdfast.services.sessions import Heirs as Heirs

__version__: Final = "0.1.0"

_HOMES: Final = {
    "Agent": "domain.agents",
    "AgentQuery": "domain.queries",
    "Config": "config.values",
    "Conflict": "domain.errors",
    "Denied": "domain.errors",
    "Event": "domain.events",
    "Gap": "domain.events",
    "Heirs": "services.sessions",
    "Holdfast": "bootstrap",
    "HoldfastError": "domain.errors",
    "Internal": "domain.errors",
    "Invalid": "domain.errors",
    "LimitReached": "domain.errors",
    "Message": "domain.messages",
    "NotFound": "domain.errors",
    "OnBusy": "domain.sessions",
    "Role": "domain.messages",
    "Scope": "execution.local",
    "Session": "domain.sessions",
    "SessionContext": "domain.contexts",
    "SessionId": "domain.ids",
    "SessionQuery": "domain.queries",
    "SessionRequest": "domain.openings",
    "Status": "domain.sessions",
    "StepDelta": "domain.events",
    "StopReason": "domain.sessions",
    "StorageFull": "domain.errors",
    "Text": "domain.messages",
    "TurnEnded": "domain.events",
    "Unavailable": "domain.errors",
    "open_holdfast": "bootstrap",
}

__all__ = [*sorted([*_HOMES, "__version__"])]  # noqa: PLE0604 — one list, not two


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(import_module(f"holdfast.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
