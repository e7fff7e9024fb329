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
from holdfast.http.v1.archives_forms import (
    ArchivedForm,
    ArchiveForm,
    ArchivesQuery,
    ArchiveSummaryForm,
    RestoredForm,
)
from holdfast.http.v1.calls_forms import CallForm, CallsQuery, SettlePost
from holdfast.http.v1.contexts_forms import ContextForm, SelectionForm
from holdfast.http.v1.costs_forms import CostList, CostsQuery
from holdfast.http.v1.endings_forms import (
    ClosePost,
    ExportQuery,
    ForkPost,
    Interrupted,
    InterruptPost,
    Resumed,
    ResumePost,
)
from holdfast.http.v1.history_bodies import CorrectionPost, EntityPost, RestorationPost
from holdfast.http.v1.history_forms import (
    CheckpointQuery,
    ClaimsQuery,
    HistoryList,
    HistoryPageQuery,
    PastQuery,
    RemovalQuery,
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
from holdfast.http.v1.search_forms import HitForm, SearchForm
from holdfast.http.v1.sessions_forms import (
    BudgetForm,
    DeletionQuery,
    SessionForm,
    SessionPatch,
    SessionPost,
    SessionsQuery,
)
from holdfast.http.v1.timelines_forms import EntitiesQuery, EventsOfQuery
from holdfast.http.v1.words import Deltas, EventForm
from holdfast.http.v1.zones_forms import (
    DeskForm,
    LinesForm,
    LinesQuery,
    OutputAppendedForm,
    ReplayForm,
    ReplayQuery,
    StateForm,
    StateWrittenForm,
    ZoneFileForm,
)
from holdfast.observations.queries import CheckpointState, SubmitResult
from holdfast.observations.timeline import TimelineEvent
from holdfast.services.calls import SettlementAction
from holdfast.services.history_forms import (
    EntityForm,
    EntityList,
    HistoryForm,
    ObservationForm,
    ObservationList,
    RemovalForm,
    TimelineForm,
)
from holdfast.workflows.session_export import ExportFormat

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
    "ArchiveForm",
    "ArchiveSummaryForm",
    "ArchivedForm",
    "ArchivesQuery",
    "AssistantPost",
    "BudgetForm",
    "CallContent",
    "CallForm",
    "CallPost",
    "CallState",
    "CallsQuery",
    "CheckpointQuery",
    "CheckpointState",
    "ClaimsQuery",
    "Client",
    "ClosePost",
    "ContextForm",
    "CorrectionPost",
    "CostGroup",
    "CostList",
    "CostsQuery",
    "DeletionQuery",
    "Deltas",
    "DeskForm",
    "EntitiesQuery",
    "EntityForm",
    "EntityList",
    "EntityPost",
    "EventForm",
    "EventsOfQuery",
    "ExportFormat",
    "ExportQuery",
    "ForkPost",
    "Gap",
    "GrantForm",
    "HistoryForm",
    "HistoryList",
    "HistoryPageQuery",
    "HitForm",
    "InterruptPost",
    "Interrupted",
    "LinesForm",
    "LinesQuery",
    "Listing",
    "LlmRuntimeForm",
    "MediaPart",
    "MessageForm",
    "MessagesQuery",
    "ModelForm",
    "ModelPost",
    "ObservationForm",
    "ObservationList",
    "OnBusy",
    "OutputAppendedForm",
    "Page",
    "PastQuery",
    "Patience",
    "PricesForm",
    "RemovalForm",
    "RemovalQuery",
    "ReplayForm",
    "ReplayQuery",
    "RepoForm",
    "RestorationPost",
    "RestoredForm",
    "ResultContent",
    "ResultPost",
    "ResumePost",
    "Resumed",
    "SearchForm",
    "SelectionForm",
    "SessionForm",
    "SessionPatch",
    "SessionPost",
    "SessionsQuery",
    "SettlePost",
    "SettlementAction",
    "StateForm",
    "StateWrittenForm",
    "SubmitResult",
    "SystemPost",
    "TextContent",
    "TextPart",
    "TimelineEvent",
    "TimelineForm",
    "UserPost",
    "ZoneFileForm",
]
