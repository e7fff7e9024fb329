"""What the HTTP layer needs of an open instance: its services and a few settings."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.domain.agent_processes import KnownProgram
    from holdfast.domain.approvals import ApprovalMode
    from holdfast.observations.service import Observations
    from holdfast.search.service import Search
    from holdfast.services.agents import Agents
    from holdfast.services.approvals import Approvals
    from holdfast.services.calls import Calls
    from holdfast.services.costs import Costs
    from holdfast.services.event_stream import Events
    from holdfast.services.media import Media
    from holdfast.services.messages import Messages
    from holdfast.services.models import Models
    from holdfast.services.repos import Repos
    from holdfast.services.session_views import SessionViews
    from holdfast.services.sessions import Sessions
    from holdfast.services.tokens import Tokens
    from holdfast.services.turns import Compactions
    from holdfast.workflows.session_export import Exports
    from holdfast.zones.service import Zones


class Settings(Protocol):
    """The settings that callers may read."""

    @property
    def default_model(self) -> str: ...
    @property
    def approval(self) -> "ApprovalMode": ...


class House(Protocol):
    """The services that routes call; each method takes the owner first."""

    @property
    def agents(self) -> "Agents": ...
    @property
    def approvals(self) -> "Approvals": ...
    @property
    def calls(self) -> "Calls": ...
    @property
    def compactions(self) -> "Compactions": ...
    @property
    def config(self) -> Settings: ...
    @property
    def costs(self) -> "Costs": ...
    @property
    def events(self) -> "Events": ...
    @property
    def exports(self) -> "Exports": ...
    @property
    def media(self) -> "Media": ...
    @property
    def messages(self) -> "Messages": ...
    @property
    def models(self) -> "Models": ...
    @property
    def observations(self) -> "Observations": ...
    @property
    def session_views(self) -> "SessionViews": ...
    @property
    def repos(self) -> "Repos": ...
    @property
    def search(self) -> "Search": ...
    @property
    def sessions(self) -> "Sessions": ...
    @property
    def tokens(self) -> "Tokens": ...
    @property
    def zones(self) -> "Zones": ...

    async def programs(self) -> "Sequence[KnownProgram]":
        """Find well-known agent programs on this machine."""
