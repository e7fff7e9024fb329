"""Agents, models and repositories of a server."""

from collections.abc import Mapping
from typing import Any, Final, NoReturn

from msgspec.structs import asdict

from holdfast.cli.remote.values import agent_of, model_value, repo_of
from holdfast.client import AgentPatch, AgentPost, AgentsQuery, Client
from holdfast.domain.agents import AcpRuntime, Agent, LlmRuntime
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import Owner
from holdfast.domain.models import Model
from holdfast.domain.queries import AgentQuery, Page
from holdfast.domain.repos import Repo
from holdfast.wire.agents import AcpRuntimeForm, LlmRuntimeForm

# Fields with the same name on both sides.
_PLAIN: Final = ("slug", "name", "description", "system_prompt", "recovery", "tags", "status")
# Only a file on the server's machine may set these, because its author has access there.
_NOT_FROM_AFAR: Final = ("mcp_servers", "extra")
_USUAL_ATTEMPTS: Final = (None, 2)


class RemoteAgents:
    """Agents of a server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def create(self, _: Owner, fields: Mapping[str, Any]) -> Agent:
        """Create an agent."""
        wish = AgentPost(**{"system_prompt": "", **wire_fields(fields)})
        return agent_of(await self._client.agents.create(wish))

    async def get(self, _: Owner, ref: str) -> Agent:
        """Return an agent by its id or slug."""
        return agent_of(await self._client.agents.get(ref))

    async def list(self, query: AgentQuery, *, cursor: str | None = None) -> Page[Agent]:
        """Return a page of agents, newest first."""
        wanted = AgentsQuery(
            status=query.status.value if query.status else "all",
            tag=query.tags,
            q=query.text,
            limit=query.limit,
        )
        page = await self._client.agents.list(wanted).page(cursor)
        return Page(items=tuple(map(agent_of, page.data)), next_cursor=page.next_cursor)

    async def update(self, _: Owner, ref: str, changes: Mapping[str, Any]) -> Agent:
        """Change an agent."""
        return agent_of(await self._client.agents.update(ref, AgentPatch(**wire_fields(changes))))

    async def archive(self, owner: Owner, ref: str) -> Agent:
        """Archive an agent."""
        await self._client.agents.archive(ref)
        return await self.get(owner, ref)


class RemoteModels:
    """Models of a server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self) -> list[Model]:
        """Return all models."""
        return [model_value(form) for form in await self._client.models.list()]

    async def catalogue(self) -> tuple[Model, ...]:
        """Return every model that can be used on the server."""
        return tuple(await self.list())

    async def check(self, *refs: str) -> None:
        """Do nothing: the server validates a model when it is used."""


class RemoteRepos:
    """Repositories of a server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def add(
        self, _: Owner, path: str, *, name: str | None = None, at_terminal: bool = False
    ) -> Repo:
        """Register a folder of the server's machine; `at_terminal` has no effect."""
        return repo_of(await self._client.repos.add(path, name=name))

    async def require_folder(self, _: Owner, path: str) -> str:
        """Return the folder unchanged: the server validates it when a session is opened."""
        return path

    async def list(self, _: Owner) -> list[Repo]:
        """Return the repositories by name."""
        return [repo_of(form) for form in await self._client.repos.list()]

    async def remove(self, _: Owner, repo_id: str) -> None:
        """Remove a repository."""
        await self._client.repos.remove(repo_id)


def wire_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return an agent's fields as the API takes them; refuse fields that the API lacks."""
    for name in _NOT_FROM_AFAR:
        if fields.get(name):
            _refuse(name)
    told = {name: fields[name] for name in _PLAIN if name in fields}
    if "tools" in fields:
        told["tools"] = tuple(tool["name"] for tool in fields["tools"])
    if "models" in fields:
        first, *others = fields["models"] or (None,)
        told |= {"default_model_id": first, "fallback_model_ids": tuple(others)}
    # Only null can be sent: it leaves the grant to the server's configuration.
    if "grant" in fields and fields["grant"] is None:
        told["grant"] = None
    runtime = fields.get("runtime")
    if isinstance(runtime, AcpRuntime):
        told["runtime"] = AcpRuntimeForm(**asdict(runtime))
    if isinstance(runtime, LlmRuntime):
        if any(each.max_attempts not in _USUAL_ATTEMPTS for each in runtime.models):
            _refuse("fallback_chain.max_attempts")
        told |= {"temperature": runtime.temperature, "max_tokens": runtime.max_tokens}
        told["runtime"] = LlmRuntimeForm(
            reasoning_effort=runtime.reasoning_effort, retry=runtime.retry, memory=runtime.memory
        )
    return told


def _refuse(name: str) -> NoReturn:
    raise Invalid(
        Code.AGENT_INVALID,
        f"{name} cannot be set over the network; run this where the server runs, without --server.",
        {"fields": [name]},
    )
