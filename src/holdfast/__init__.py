"""Holdfast: the durable session layer for AI agents.

Names are imported on first use, because the command line must start fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from holdfast.api import Holdfast as Holdfast
    from holdfast.api import LocalHoldfast as LocalHoldfast
    from holdfast.app import Environment as Environment
    from holdfast.app import open_holdfast as open_holdfast
    from holdfast.ask.answers import Answer as Answer
    from holdfast.ask.answers import Cost as Cost
    from holdfast.ask.answers import ReasoningDelta as ReasoningDelta
    from holdfast.ask.answers import TextDelta as TextDelta
    from holdfast.ask.answers import TurnFailed as TurnFailed
    from holdfast.ask.answers import Waiting as Waiting
    from holdfast.ask.children import Child as Child
    from holdfast.ask.options import AskOptions as AskOptions
    from holdfast.children.model import ChildAnswer as ChildAnswer
    from holdfast.client.remote import RemoteHoldfast as RemoteHoldfast
    from holdfast.client.remote import connect as connect
    from holdfast.client.requests import Timeouts as Timeouts
    from holdfast.config.settings import Chat as Chat
    from holdfast.config.settings import Config as Config
    from holdfast.domain.agents import Agent as Agent
    from holdfast.domain.approvals import Approval as Approval
    from holdfast.domain.approvals import ApprovalMode as ApprovalMode
    from holdfast.domain.approvals import ApprovalScope as ApprovalScope
    from holdfast.domain.approvals import ApprovalState as ApprovalState
    from holdfast.domain.approvals import Decision as Decision
    from holdfast.domain.calls import Call as Call
    from holdfast.domain.calls import CallState as CallState
    from holdfast.domain.calls import Settlement as Settlement
    from holdfast.domain.costs import Usage as Usage
    from holdfast.domain.drafts import MessageDraft as MessageDraft
    from holdfast.domain.errors import Code as Code
    from holdfast.domain.errors import Conflict as Conflict
    from holdfast.domain.errors import Denied as Denied
    from holdfast.domain.errors import HoldfastError as HoldfastError
    from holdfast.domain.errors import Internal as Internal
    from holdfast.domain.errors import Invalid as Invalid
    from holdfast.domain.errors import LimitReached as LimitReached
    from holdfast.domain.errors import NotFound as NotFound
    from holdfast.domain.errors import StorageFull as StorageFull
    from holdfast.domain.errors import Unavailable as Unavailable
    from holdfast.domain.events import ApprovalAnswered as ApprovalAnswered
    from holdfast.domain.events import ApprovalRequested as ApprovalRequested
    from holdfast.domain.events import CallSettled as CallSettled
    from holdfast.domain.events import Event as Event
    from holdfast.domain.events import Gap as Gap
    from holdfast.domain.events import MessageAppended as MessageAppended
    from holdfast.domain.events import StepDelta as StepDelta
    from holdfast.domain.events import StepEnded as StepEnded
    from holdfast.domain.events import StepFailed as StepFailed
    from holdfast.domain.events import StepStarted as StepStarted
    from holdfast.domain.events import ToolEnded as ToolEnded
    from holdfast.domain.events import ToolProgressed as ToolProgressed
    from holdfast.domain.events import ToolStarted as ToolStarted
    from holdfast.domain.events import TurnContinued as TurnContinued
    from holdfast.domain.events import TurnEnded as TurnEnded
    from holdfast.domain.events import TurnPaused as TurnPaused
    from holdfast.domain.events import TurnStarted as TurnStarted
    from holdfast.domain.ids import SessionId as SessionId
    from holdfast.domain.messages import Media as Media
    from holdfast.domain.messages import Message as Message
    from holdfast.domain.messages import Notice as Notice
    from holdfast.domain.messages import NoticeCode as NoticeCode
    from holdfast.domain.messages import Reasoning as Reasoning
    from holdfast.domain.messages import ResultStatus as ResultStatus
    from holdfast.domain.messages import Role as Role
    from holdfast.domain.messages import Text as Text
    from holdfast.domain.messages import ToolCall as ToolCall
    from holdfast.domain.messages import ToolResult as ToolResult
    from holdfast.domain.queries import AgentQuery as AgentQuery
    from holdfast.domain.queries import Page as Page
    from holdfast.domain.queries import SessionQuery as SessionQuery
    from holdfast.domain.recordings import Recorded as Recorded
    from holdfast.domain.recordings import RecordedDraft as RecordedDraft
    from holdfast.domain.sessions import Budget as Budget
    from holdfast.domain.sessions import OnBusy as OnBusy
    from holdfast.domain.sessions import OnExceed as OnExceed
    from holdfast.domain.sessions import Selection as Selection
    from holdfast.domain.sessions import Session as Session
    from holdfast.domain.sessions import SessionContext as SessionContext
    from holdfast.domain.sessions import SessionRequest as SessionRequest
    from holdfast.domain.sessions import Status as Status
    from holdfast.domain.sessions import StopReason as StopReason
    from holdfast.domain.tools import Effect as Effect
    from holdfast.domain.tools import FsTier as FsTier
    from holdfast.domain.tools import Grant as Grant
    from holdfast.domain.waits import Wait as Wait
    from holdfast.domain.waits import WaitReason as WaitReason
    from holdfast.execution.coordinator import RunScope as RunScope
    from holdfast.functions.context import Cancelled as Cancelled
    from holdfast.functions.context import OutcomeUnknown as OutcomeUnknown
    from holdfast.functions.context import ToolCallContext as ToolCallContext
    from holdfast.functions.context import ToolFailed as ToolFailed
    from holdfast.functions.tool import Ask as Ask
    from holdfast.functions.tool import Tool as Tool
    from holdfast.functions.tool import tool as tool
    from holdfast.loops.held_turns import TurnAborted as TurnAborted
    from holdfast.loops.replay import CallDenied as CallDenied
    from holdfast.loops.turn import StepContext as StepContext
    from holdfast.own_loops import Turn as Turn
    from holdfast.own_loops import runtime as runtime
    from holdfast.services.calls import CallAnswer as CallAnswer
    from holdfast.services.calls import SettlementAction as SettlementAction
    from holdfast.services.calls import SettlementRequest as SettlementRequest
    from holdfast.services.session_lifecycle import DeletePolicy as DeletePolicy

__version__: Final = "0.1.0"

_HOMES: Final = {
    "Agent": "domain.agents",
    "AgentQuery": "domain.queries",
    "Answer": "ask.answers",
    "Approval": "domain.approvals",
    "ApprovalAnswered": "domain.events",
    "ApprovalMode": "domain.approvals",
    "ApprovalRequested": "domain.events",
    "ApprovalScope": "domain.approvals",
    "ApprovalState": "domain.approvals",
    "Ask": "functions.tool",
    "AskOptions": "ask.options",
    "Budget": "domain.sessions",
    "Call": "domain.calls",
    "CallAnswer": "services.calls",
    "CallDenied": "loops.replay",
    "CallSettled": "domain.events",
    "CallState": "domain.calls",
    "Cancelled": "functions.context",
    "Chat": "config.settings",
    "Child": "ask.children",
    "ChildAnswer": "children.model",
    "Code": "domain.errors",
    "Config": "config.settings",
    "Conflict": "domain.errors",
    "connect": "client.remote",
    "Cost": "ask.answers",
    "Decision": "domain.approvals",
    "DeletePolicy": "services.session_lifecycle",
    "Denied": "domain.errors",
    "Effect": "domain.tools",
    "Environment": "app",
    "Event": "domain.events",
    "FsTier": "domain.tools",
    "Gap": "domain.events",
    "Grant": "domain.tools",
    "Holdfast": "api",
    "HoldfastError": "domain.errors",
    "Internal": "domain.errors",
    "Invalid": "domain.errors",
    "LimitReached": "domain.errors",
    "LocalHoldfast": "api",
    "Media": "domain.messages",
    "Message": "domain.messages",
    "MessageAppended": "domain.events",
    "MessageDraft": "domain.drafts",
    "NotFound": "domain.errors",
    "Notice": "domain.messages",
    "NoticeCode": "domain.messages",
    "OnBusy": "domain.sessions",
    "OnExceed": "domain.sessions",
    "open_holdfast": "app",
    "OutcomeUnknown": "functions.context",
    "Page": "domain.queries",
    "Reasoning": "domain.messages",
    "ReasoningDelta": "ask.answers",
    "Recorded": "domain.recordings",
    "RecordedDraft": "domain.recordings",
    "RemoteHoldfast": "client.remote",
    "ResultStatus": "domain.messages",
    "Role": "domain.messages",
    "RunScope": "execution.coordinator",
    "runtime": "own_loops",
    "Selection": "domain.sessions",
    "Session": "domain.sessions",
    "SessionContext": "domain.sessions",
    "SessionId": "domain.ids",
    "SessionQuery": "domain.queries",
    "SessionRequest": "domain.sessions",
    "Settlement": "domain.calls",
    "SettlementAction": "services.calls",
    "SettlementRequest": "services.calls",
    "Status": "domain.sessions",
    "StepContext": "loops.turn",
    "StepDelta": "domain.events",
    "StepEnded": "domain.events",
    "StepFailed": "domain.events",
    "StepStarted": "domain.events",
    "StopReason": "domain.sessions",
    "StorageFull": "domain.errors",
    "Text": "domain.messages",
    "TextDelta": "ask.answers",
    "Timeouts": "client.requests",
    "Tool": "functions.tool",
    "tool": "functions.tool",
    "ToolCall": "domain.messages",
    "ToolCallContext": "functions.context",
    "ToolEnded": "domain.events",
    "ToolFailed": "functions.context",
    "ToolProgressed": "domain.events",
    "ToolResult": "domain.messages",
    "ToolStarted": "domain.events",
    "Turn": "own_loops",
    "TurnAborted": "loops.held_turns",
    "TurnContinued": "domain.events",
    "TurnEnded": "domain.events",
    "TurnFailed": "ask.answers",
    "TurnPaused": "domain.events",
    "TurnStarted": "domain.events",
    "Unavailable": "domain.errors",
    "Usage": "domain.costs",
    "Wait": "domain.waits",
    "Waiting": "ask.answers",
    "WaitReason": "domain.waits",
}

__all__ = [*sorted([*_HOMES, "__version__"])]  # noqa: PLE0604 — one list instead of two


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(import_module(f"holdfast.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
