"""What the MCP surface needs of an open house: its services; each verb takes the owner first."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from holdfast.observations.service import Observations
    from holdfast.search.service import Search
    from holdfast.services.calls import Calls
    from holdfast.services.messages import Messages
    from holdfast.services.session_views import SessionViews
    from holdfast.services.sessions import Sessions
    from holdfast.workflows.session_export import Exports


class House(Protocol):
    """The services as tools, resources and prompts call them."""

    @property
    def calls(self) -> "Calls": ...
    @property
    def exports(self) -> "Exports": ...
    @property
    def messages(self) -> "Messages": ...
    @property
    def observations(self) -> "Observations": ...
    @property
    def session_views(self) -> "SessionViews": ...
    @property
    def search(self) -> "Search": ...
    @property
    def sessions(self) -> "Sessions": ...
