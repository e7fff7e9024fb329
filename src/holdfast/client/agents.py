"""Agents and models, asked for over the network."""

from msgspec.structs import replace

from holdfast.client.ids import new_id
from holdfast.client.listings import Listing
from holdfast.client.requests import Requests, path_of
from holdfast.http.v1.agents_forms import AgentForm, AgentList, AgentPatch, AgentPost, AgentsQuery
from holdfast.http.v1.models_forms import ModelForm, ModelList, ModelPost


class Agents:
    """Who answers."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def create(self, wish: AgentPost) -> AgentForm:
        """Make an agent; without an id of its own it gets one here, so that it is made once."""
        body = wish if wish.id is not None else replace(wish, id=new_id())
        return await self._requests.post("/v1/agents", body, AgentForm)

    async def get(self, ref: str) -> AgentForm:
        """Return an agent by its id or slug."""
        return await self._requests.get(path_of("v1", "agents", ref), AgentForm)

    def list(self, query: AgentsQuery | None = None) -> Listing[AgentForm]:
        """List agents, newest first."""
        wanted = query or AgentsQuery()

        async def fetch(cursor: str | None) -> AgentList:
            asked = replace(wanted, cursor=cursor or wanted.cursor)
            return await self._requests.get("/v1/agents", AgentList, asked)

        return Listing(fetch)

    async def update(self, ref: str, changes: AgentPatch) -> AgentForm:
        """Change an agent; what is not named stays."""
        return await self._requests.patch(path_of("v1", "agents", ref), changes, AgentForm)

    async def archive(self, ref: str) -> None:
        """Archive an agent; its sessions go on."""
        await self._requests.delete(path_of("v1", "agents", ref))


class Models:
    """Which models there are, and what they cost."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def list(self) -> tuple[ModelForm, ...]:
        """Return all models by provider and name."""
        return (await self._requests.get("/v1/models", ModelList)).data

    async def get(self, ref: str) -> ModelForm:
        """Return a model by its id or `provider:name`."""
        return await self._requests.get(path_of("v1", "models", ref), ModelForm)

    async def add(self, wish: ModelPost) -> ModelForm:
        """Add a model, or describe a known one anew."""
        return await self._requests.post("/v1/models", wish, ModelForm)
