"""A client for a Holdfast server: typed, asynchronous, with streams that resume by themselves."""

from holdfast.client.client import Client
from holdfast.client.following import Gap
from holdfast.client.listings import Listing
from holdfast.client.patience import Patience
from holdfast.http.v1.agents_forms import AgentForm, AgentPatch, AgentPost, AgentsQuery
from holdfast.http.v1.approvals_forms import AnswerPost, ApprovalForm, ApprovalsQuery
from holdfast.http.v1.calls_forms import CallForm, CallsQuery, SettlePost
from holdfast.http.v1.costs_forms import CostsQuery
from holdfast.http.v1.endings_forms import ClosePost, ExportQuery, ForkPost, InterruptPost
from holdfast.http.v1.messages_forms import (
    AssistantPost,
    CallPost,
    MessageForm,
    MessagesQuery,
    ResultPost,
    SystemPost,
    UserPost,
)
from holdfast.http.v1.models_forms import ModelForm, ModelPost
from holdfast.http.v1.sessions_forms import (
    DeletionQuery,
    SessionForm,
    SessionPatch,
    SessionPost,
    SessionsQuery,
)
from holdfast.http.v1.words import Deltas, EventForm

__all__ = [
    "AgentForm",
    "AgentPatch",
    "AgentPost",
    "AgentsQuery",
    "AnswerPost",
    "ApprovalForm",
    "ApprovalsQuery",
    "AssistantPost",
    "CallForm",
    "CallPost",
    "CallsQuery",
    "Client",
    "ClosePost",
    "CostsQuery",
    "DeletionQuery",
    "Deltas",
    "EventForm",
    "ExportQuery",
    "ForkPost",
    "Gap",
    "InterruptPost",
    "Listing",
    "MessageForm",
    "MessagesQuery",
    "ModelForm",
    "ModelPost",
    "Patience",
    "ResultPost",
    "SessionForm",
    "SessionPatch",
    "SessionPost",
    "SessionsQuery",
    "SettlePost",
    "SystemPost",
    "UserPost",
]
