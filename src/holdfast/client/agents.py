"""Agents, models and repositories of a server."""

from collections.abc import Mapping
from typing import Any

from holdfast.client.requests import Requests, build_path, new_id
from holdfast.domain.agents import Agent
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.models import Model, ModelRequest
from holdfast.domain.queries import AgentQuery, Page
from holdfast.domain.repos import Repo
from holdfast.wire.agents import (
    AgentForm,
    AgentList,
    AgentPatch,
    AgentPost,
    agent_changes,
    agent_of,
    agents_query,
)
from holdfast.wire.models import ModelForm, ModelList, model_post, model_value
from holdfast.wire.repo_sessions import RepoForm, RepoList, RepoPost, repo_of


class RemoteAgents:
    """Agents of a server."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def create(
        self, owner: Owner, fields: Mapping[str, Any], *, id: str | None = None
    ) -> Agent:
        """Create an agent from its fields; only `name` is required."""
        sent = {"system_prompt": "", **agent_changes(fields)}
        body = AgentPost(id=id or new_id(), **sent)
        return agent_of(await self._requests.post("/v1/agents", body, AgentForm))

    async def get(self, owner: Owner, ref: str) -> Agent:
        """Return an agent by its id or slug."""
        return agent_of(await self._requests.get(_agent_path(ref), AgentForm))

    async def list(self, query: AgentQuery, *, cursor: str | None = None) -> Page[Agent]:
        """Return a page of agents, newest first."""
        page = await self._requests.get("/v1/agents", AgentList, agents_query(query, cursor))
        return Page(items=tuple(map(agent_of, page.data)), next_cursor=page.next_cursor)

    async def update(self, owner: Owner, ref: str, changes: Mapping[str, Any]) -> Agent:
        """Change an agent; omitted fields stay unchanged."""
        body = AgentPatch(**agent_changes(changes))
        return agent_of(await self._requests.patch(_agent_path(ref), body, AgentForm))

    async def archive(self, owner: Owner, ref: str) -> Agent:
        """Archive an agent; its sessions continue."""
        await self._requests.delete(_agent_path(ref))
        return await self.get(owner, ref)


class RemoteModels:
    """Models of a server."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def add(self, request: ModelRequest) -> Model:
        """Add a model, or replace the description of a known one."""
        form = await self._requests.post("/v1/models", model_post(request), ModelForm)
        return model_value(form)

    async def catalogue(self) -> tuple[Model, ...]:
        """Return every model that can be used on the server."""
        return tuple(await self.list())

    async def check(self, *refs: str) -> None:
        """Do nothing: the server validates a model when it is used."""

    async def get(self, ref: str) -> Model:
        """Return a model by its id or `provider:name`."""
        return model_value(await self._requests.get(build_path("v1", "models", ref), ModelForm))

    async def list(self) -> list[Model]:
        """Return all models by provider and name."""
        return [model_value(form) for form in await self._forms()]

    async def _forms(self) -> tuple[ModelForm, ...]:
        return (await self._requests.get("/v1/models", ModelList)).data


class RemoteRepos:
    """Repositories of a server."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def add(
        self, owner: Owner, path: str, *, name: str | None = None, at_terminal: bool = False
    ) -> Repo:
        """Register a Git work tree of the server's machine; `at_terminal` has no effect."""
        body = RepoPost(path=path, name=name)
        return repo_of(await self._requests.post("/api/repos", body, RepoForm))

    async def list(self, owner: Owner) -> list[Repo]:
        """Return the repositories by name."""
        return [repo_of(form) for form in await self._forms()]

    async def remove(self, owner: Owner, repo_id: str) -> None:
        """Unregister a repository that no session is bound to."""
        await self._requests.delete(build_path("api", "repos", repo_id))

    async def require_folder(self, owner: Owner, path: str) -> str:
        """Return the folder unchanged: the server validates it when a session is opened."""
        return path

    async def _forms(self) -> tuple[RepoForm, ...]:
        return (await self._requests.get("/api/repos", RepoList)).repos


class RemoteMcpServers:
    """MCP servers of clients, which a server does not take."""

    async def attach(
        self, owner: Owner, session_id: SessionId, servers: tuple[Mapping[str, Any], ...]
    ) -> None:
        """Refuse MCP servers: those of a server are configured there."""
        if servers:
            names = ", ".join(str(each["id"]) for each in servers)
            raise Invalid(
                Code.INVALID_INPUT,
                f"These MCP servers cannot be attached over the network: {names}. Describe them in "
                "the server's own holdfast.toml.",
            )


def _agent_path(ref: str) -> str:
    return build_path("v1", "agents", ref)
