"""What the HTTP surface needs of an open house: its services, and a little of its settings."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.domain.approvals import ApprovalMode
    from holdfast.domain.programs import KnownProgram
    from holdfast.services.agents import Agents
    from holdfast.services.approvals import Approvals
    from holdfast.services.calls import Calls
    from holdfast.services.compactions import Compactions
    from holdfast.services.costs import Costs
    from holdfast.services.events import Events
    from holdfast.services.exports import Exports
    from holdfast.services.media import Media
    from holdfast.services.messages import Messages
    from holdfast.services.models import Models
    from holdfast.services.observations import Observations
    from holdfast.services.overviews import Overviews
    from holdfast.services.repos import Repos
    from holdfast.services.search import Search
    from holdfast.services.sessions import Sessions
    from holdfast.services.tokens import Tokens
    from holdfast.services.zones import Zones


class Settings(Protocol):
    """What callers may know of how the house is set."""

    @property
    def default_model(self) -> str: ...
    @property
    def approval(self) -> "ApprovalMode": ...


class House(Protocol):
    """The services as routes call them; each verb takes the owner first."""

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
    def overviews(self) -> "Overviews": ...
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
        """Look for well-known agents on this machine."""
