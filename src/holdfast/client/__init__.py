"""A client for a Holdfast server: typed, asynchronous, with streams that resume by themselves."""

from holdfast.client.client import Client
from holdfast.client.following import Gap
from holdfast.client.listings import Listing, Page
from holdfast.client.patience import Patience
from holdfast.domain.approvals import ApprovalMode, ApprovalScope, ApprovalState
from holdfast.domain.calls import CallState
from holdfast.domain.costs import CostGroup
from holdfast.domain.sessions import OnBusy
from holdfast.http.api.forms import RepoForm
from holdfast.http.v1.agents_forms import (
    AcpRuntimeForm,
    AgentForm,
    AgentPatch,
    AgentPost,
    AgentsQuery,
    GrantForm,
    LlmRuntimeForm,
)
from holdfast.http.v1.approvals_forms import AnswerPost, ApprovalForm, ApprovalsQuery
from holdfast.http.v1.calls_forms import CallForm, CallsQuery, SettlePost
from holdfast.http.v1.contexts_forms import ContextForm, SelectionForm
from holdfast.http.v1.costs_forms import CostList, CostsQuery
from holdfast.http.v1.endings_forms import (
    ClosePost,
    ExportQuery,
    ForkPost,
    Interrupted,
    InterruptPost,
    ResumePost,
)
from holdfast.http.v1.messages_forms import (
    AssistantPost,
    CallContent,
    CallPost,
    MediaPart,
    MessageForm,
    MessagesQuery,
    ResultContent,
    ResultPost,
    SystemPost,
    TextContent,
    TextPart,
    UserPost,
)
from holdfast.http.v1.models_forms import ModelForm, ModelPost, PricesForm
from holdfast.http.v1.sessions_forms import (
    BudgetForm,
    DeletionQuery,
    SessionForm,
    SessionPatch,
    SessionPost,
    SessionsQuery,
)
from holdfast.http.v1.words import Deltas, EventForm
from holdfast.services.calls import How
from holdfast.services.exports import ExportFormat

__all__ = [
    "AcpRuntimeForm",
    "AgentForm",
    "AgentPatch",
    "AgentPost",
    "AgentsQuery",
    "AnswerPost",
    "ApprovalForm",
    "ApprovalMode",
    "ApprovalScope",
    "ApprovalState",
    "ApprovalsQuery",
    "AssistantPost",
    "BudgetForm",
    "CallContent",
    "CallForm",
    "CallPost",
    "CallState",
    "CallsQuery",
    "Client",
    "ClosePost",
    "ContextForm",
    "CostGroup",
    "CostList",
    "CostsQuery",
    "DeletionQuery",
    "Deltas",
    "EventForm",
    "ExportFormat",
    "ExportQuery",
    "ForkPost",
    "Gap",
    "GrantForm",
    "How",
    "InterruptPost",
    "Interrupted",
    "Listing",
    "LlmRuntimeForm",
    "MediaPart",
    "MessageForm",
    "MessagesQuery",
    "ModelForm",
    "ModelPost",
    "OnBusy",
    "Page",
    "Patience",
    "PricesForm",
    "RepoForm",
    "ResultContent",
    "ResultPost",
    "ResumePost",
    "SelectionForm",
    "SessionForm",
    "SessionPatch",
    "SessionPost",
    "SessionsQuery",
    "SettlePost",
    "SystemPost",
    "TextContent",
    "TextPart",
    "UserPost",
]
