"""What the MCP surface needs of an open house: its services; each verb takes the owner first."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from holdfast.services.calls import Calls
    from holdfast.services.exports import Exports
    from holdfast.services.messages import Messages
    from holdfast.services.observations import Observations
    from holdfast.services.overviews import Overviews
    from holdfast.services.search import Search
    from holdfast.services.sessions import Sessions


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
    def overviews(self) -> "Overviews": ...
    @property
    def search(self) -> "Search": ...
    @property
    def sessions(self) -> "Sessions": ...
