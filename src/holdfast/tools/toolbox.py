"""The toolbox: validates a call in a fixed order, and runs exactly what was planned.

Order: name, grant, arguments, capability, the tool's own policy. Approval does not belong here; it
happens between `plan` and `run`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from holdfast.children.service import Children
from holdfast.domain.approvals import digest_call
from holdfast.domain.messages import ResultStatus, ToolError
from holdfast.domain.secrets import Scrubber
from holdfast.domain.text import is_small, visible_json
from holdfast.domain.tools import INVOKE_AGENT, Effect, ResultCode, ToolClass, ToolSpec
from holdfast.ports.llm import LlmTool
from holdfast.ports.tools import CallOutcome, PlannedCall, RequestedCall, ToolWorkspace
from holdfast.services import background_tasks
from holdfast.services.agents import SchemaFault, check_value
from holdfast.tools.child_agents import find_child_tool
from holdfast.tools.function_tools import FunctionTool, FunctionTools
from holdfast.tools.mcp.tools import McpTools
from holdfast.tools.tool import CallPlan, LocalTool, ToolFailure, UnansweredRequest


@dataclass(frozen=True, kw_only=True)
class ClientTool(LocalTool[Any]):
    """The definition of an agent's author as a tool of the toolbox."""

    def parse(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check the arguments against the schema; errors name the path but never show the value."""
        try:
            check_value(arguments, self.parameters())
        except SchemaFault as fault:
            raise ToolFailure(
                ResultCode.INVALID_ARGUMENTS, f"The arguments are not valid: {fault}."
            ) from None
        return dict(arguments)


def find_client_tool(workspace: ToolWorkspace, name: str) -> ClientTool | None:
    """Return the tool of a name that a client runs for the session."""
    spec = workspace.client_tools.get(name)
    if spec is None:
        return None

    async def plan(_: ToolWorkspace, arguments: dict[str, Any]) -> CallPlan:
        return _plan(spec, arguments)

    async def act(_: ToolWorkspace, __: Any, ___: RequestedCall) -> Any:
        raise NotImplementedError("a client runs the call")

    return ClientTool(
        name=name,
        description=spec.description or "",
        arguments=dict,
        schema=spec.parameters or {},
        effect=lambda _: spec.effect,
        plan=plan,
        act=act,
        is_parallel=spec.is_parallel,
    )


def _plan(spec: ToolSpec, arguments: dict[str, Any]) -> CallPlan:
    # As for a function: a pure one needs no approval, unless its rule requires one.
    is_read = spec.effect is Effect.PURE and spec.approval not in {"ask", "deny"}
    return CallPlan(
        tool_class=ToolClass.READ if is_read else ToolClass.FUNCTION,
        targets=("client",),
        question=f"Let a client run {spec.name} with the arguments\n{visible_json(arguments)}",
        memory=None if spec.effect is Effect.UNSAFE else f"client:{spec.name}",
        client_timeout=spec.timeout_s,
    )


log = logging.getLogger(__name__)

# Seconds. A restart of a server is cheap; an idle server occupies memory.
IDLE_SECONDS: Final = 600.0
_SECRET_REFERENCE: Final = "{{secrets."  # noqa: S105 — a reference prefix, not a secret


class LocalToolbox:
    """The local tools by name, and the tools of MCP servers as they are discovered."""

    def __init__(
        self,
        tools: Iterable[LocalTool[Any]],
        remote: McpTools | None = None,
        scrubber: Callable[[], Scrubber] = Scrubber,
        functions: FunctionTools | None = None,
        children: Children | None = None,
    ) -> None:
        self._remote = remote
        self._scrubber = scrubber
        self._functions = functions
        self._children = children
        # MCP servers of idle sessions are closed; they are started again on the next use.
        self._used: dict[str, float] = {}
        self._tools: dict[str, LocalTool[Any]] = {}
        self._offered: dict[str, LlmTool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ValueError(f"the tool {tool.name} is registered twice")
            self._tools[tool.name] = tool

    @property
    def names(self) -> frozenset[str]:
        """Return the names of all local tools."""
        return frozenset(self._tools)

    def effect(self, name: str, arguments: Mapping[str, Any], workspace: ToolWorkspace) -> Effect:
        """Return the effect of running the call twice; `unsafe` for unknown tools."""
        tool = self._own_tool(workspace, name)
        if tool is None:
            return self._remote.effect(name) if self._remote else Effect.UNSAFE
        try:
            return tool.effect(_parse_arguments(tool, arguments))
        except ToolFailure:
            return Effect.UNSAFE

    def is_parallel(self, name: str, workspace: ToolWorkspace) -> bool:
        """Return whether calls of the tool may run at once with adjacent ones of a model step."""
        tool = self._own_tool(workspace, name)
        return tool is not None and tool.is_parallel

    async def offers(self, workspace: ToolWorkspace) -> tuple[LlmTool, ...]:
        """Return the tools that are granted and available in this workspace."""
        offers: list[LlmTool] = []
        for name, tool in self._tools.items():
            if name in workspace.tools and tool.is_available(workspace):
                # Cached, because building a schema takes longer than the rest of a short turn.
                if name not in self._offered:
                    self._offered[name] = tool.offer()
                offers.append(self._offered[name])
        if self._functions is not None:
            offers += self._functions.offers(workspace)
        starter = find_child_tool(workspace, INVOKE_AGENT, self._children)
        if starter is not None:
            offers.append(starter.offer())
        for name in workspace.client_tools:
            # Unless a function of this process has the name.
            own = self._own_tool(workspace, name)
            if isinstance(own, ClientTool):
                offers.append(own.offer())
        if self._remote is not None and (workspace.servers or workspace.session_servers):
            self._used[workspace.session] = asyncio.get_running_loop().time()
            offers += self._redact_tools(await self._remote.offers(workspace))
        return tuple(offers)

    async def troubles(self, workspace: ToolWorkspace) -> tuple[str, ...]:
        """Return which configured servers or tools are missing here, as sentences for display."""
        if self._remote is None or not (workspace.servers or workspace.session_servers):
            return ()
        return tuple(map(self._scrubber().redact_text, await self._remote.troubles(workspace)))

    async def plan(
        self, workspace: ToolWorkspace, request: RequestedCall
    ) -> PlannedCall | CallOutcome:
        """Check everything about a call except its approval; a `CallOutcome` means refused."""
        try:
            return await self._plan(workspace, request)
        except ToolFailure as trouble:
            return await self._redact(_refused_outcome(trouble))
        # An exception in a tool fails the call, not the turn.
        except Exception:  # noqa: BLE001
            return _failed_outcome(request)

    async def run(self, workspace: ToolWorkspace, planned: PlannedCall) -> CallOutcome:
        """Run the planned call, if its target is unchanged."""
        request = planned.asked
        try:
            # Planned again, because the target may have changed while approval was pending
            # (TOCTOU).
            if planned.tool_class is not ToolClass.READ:
                again = await self._plan(workspace, request)
                was = (planned.digest, planned.tool_class)
                if (again.digest, again.tool_class) != was:
                    raise ToolFailure(
                        ResultCode.TARGET_CHANGED,
                        "The target of the call has changed since the approval; request it again.",
                    )
            tool = self._own_tool(workspace, request.name)
            if tool is None:
                tool = await self._find_remote(workspace, request.name)
            arguments = _parse_arguments(tool, request.arguments)
            return await self._redact(await tool.run(workspace, arguments, planned))
        except ToolFailure as trouble:
            return await self._redact(_refused_outcome(_classify_failure(trouble, planned.effect)))
        # An exception in a tool fails this call; its details only go to the log.
        except Exception:  # noqa: BLE001
            return _failed_outcome(request)

    async def leave(self, session: str) -> None:
        """Release the resources of a session."""
        if self._remote is not None:
            await self._remote.leave(session)

    async def close_idle_forever(self, *, after: float = IDLE_SECONDS) -> None:
        """Close the MCP servers of idle sessions periodically; never returns."""
        while True:
            await background_tasks.sleep_despite_memory_error(after / 10)
            with suppress(MemoryError):
                await self._leave_unused(asyncio.get_running_loop().time() - after)

    async def _leave_unused(self, before: float) -> None:
        for session in [each for each, used in self._used.items() if used < before]:
            del self._used[session]
            try:
                await self.leave(session)
            except Exception:
                # One failure must not prevent the release of the other sessions.
                log.exception("the MCP servers of a session could not be closed")

    async def aclose(self) -> None:
        """Release all resources."""
        if self._remote is not None:
            await self._remote.aclose()

    async def _redact(self, done: CallOutcome) -> CallOutcome:
        """Redact secrets before the model gets the result; redacting stored rows is too late."""
        scrubber = self._scrubber()
        if not scrubber.has_secrets:
            return done
        # A thread only for large results, because awaiting one could be cancelled and lose the
        # result.
        if is_small([done.result, done.error.message if done.error else ""]):
            return scrubber.redact_value(done)
        return await asyncio.to_thread(scrubber.redact_value, done)

    def _redact_tools(self, tools: Iterable[LlmTool]) -> Iterator[LlmTool]:
        """Yield server tools with secrets redacted; drop a tool whose name contains a secret."""
        scrubber = self._scrubber()
        for tool in tools:
            shown = scrubber.redact_value(tool)
            if shown.name == tool.name:
                yield shown

    def _own_tool(self, workspace: ToolWorkspace, name: str) -> LocalTool[Any] | None:
        # No function can have the name of a built-in tool.
        tool = self._tools.get(name)
        if tool is None and self._functions is not None:
            tool = self._functions.find(workspace, name)
        if tool is None:
            tool = find_child_tool(workspace, name, self._children)
        return tool or find_client_tool(workspace, name)

    async def _find_remote(self, workspace: ToolWorkspace, name: str) -> LocalTool[Any]:
        tool = await self._remote.find(workspace, name) if self._remote is not None else None
        if tool is None:
            raise ToolFailure(ResultCode.UNKNOWN_TOOL, f"There is no tool {name!r}.")
        return tool

    async def _plan(self, workspace: ToolWorkspace, request: RequestedCall) -> PlannedCall:
        tool = self._own_tool(workspace, request.name)
        if tool is None:
            tool = await self._find_remote(workspace, request.name)
        if not self._is_granted(workspace, request.name):
            raise ToolFailure(ResultCode.NOT_GRANTED, f"The tool {request.name} is not granted.")
        try:
            arguments = _parse_arguments(tool, request.arguments)
        except ToolFailure as trouble:
            if not request.is_resumed or not isinstance(tool, FunctionTool):
                raise
            text = f"The tool has changed since this call was requested. {trouble.message}"
            raise ToolFailure(trouble.code, text) from None
        scrubber = self._scrubber()
        if scrubber.has_secrets:
            _require_no_secret(request, scrubber)
        if not tool.is_available(workspace):
            raise ToolFailure(ResultCode.UNAVAILABLE, f"{request.name} is not available here.")
        aim = await tool.again(workspace, arguments, request) if tool.again is not None else None
        if aim is None:
            aim = await tool.plan(workspace, arguments)
        return PlannedCall(
            asked=request,
            effect=tool.effect(arguments),
            tool_class=aim.tool_class,
            digest=digest_call(request.name, request.arguments, workspace.working_dir, aim.targets),
            question=scrubber.redact_text(aim.question),
            preview=aim.preview
            and {key: scrubber.redact_text(text) for key, text in aim.preview.items()},
            memory=aim.memory,
            approval=aim.approval,
            slot=aim.slot,
            client_timeout=aim.client_timeout,
            goes_on=aim.goes_on,
        )

    def _is_granted(self, workspace: ToolWorkspace, name: str) -> bool:
        return name in workspace.tools or (
            self._remote is not None and self._remote.grants(workspace, name)
        )


class OwnFunction(LocalToolbox):
    """One tool that a loop of the user calls; naming it in the program grants it."""

    def __init__(self, tool: LocalTool[Any], scrubber: Callable[[], Scrubber]) -> None:
        super().__init__((tool,), scrubber=scrubber)

    def _is_granted(self, _: ToolWorkspace, name: str) -> bool:
        return name in self._tools


def _classify_failure(trouble: ToolFailure, effect: Effect) -> ToolFailure:
    """Return the failure; an unsafe call that may have been executed gets `unknown`.

    A definite failure would make the model repeat the call.
    """
    if not isinstance(trouble, UnansweredRequest) or effect is not Effect.UNSAFE:
        return trouble
    return ToolFailure(ResultCode.UNKNOWN, f"{trouble.message} The outcome of the call is unknown.")


def _parse_arguments(tool: LocalTool[Any], arguments: Mapping[str, Any]) -> Any:
    """Convert the arguments to the tool's type; errors name the field but never show the value."""
    try:
        if _SECRET_REFERENCE in msgspec.json.encode(arguments).decode():
            raise ToolFailure(
                ResultCode.INVALID_ARGUMENTS, "The arguments of a call must not name a secret."
            )
        return tool.parse(arguments)
    except UnicodeEncodeError:
        raise ToolFailure(
            ResultCode.INVALID_ARGUMENTS, "The arguments contain a lone surrogate."
        ) from None
    except msgspec.ValidationError as error:
        raise ToolFailure(
            ResultCode.INVALID_ARGUMENTS, f"The arguments are not valid: {error}."
        ) from None


def _require_no_secret(request: RequestedCall, scrubber: Scrubber) -> None:
    """Refuse a call whose arguments contain a managed secret, in every mode.

    The approval question shows `[secret:name]` instead, so the approval would cover other
    arguments.
    """
    encoded = msgspec.json.encode(request.arguments)
    if scrubber.redact_json(encoded) is not encoded:
        raise ToolFailure(
            ResultCode.INVALID_ARGUMENTS,
            "The arguments contain a secret that Holdfast manages, so the call was not "
            "executed. Leave out the value; the user has to pass it to the program.",
        )


def _refused_outcome(trouble: ToolFailure) -> CallOutcome:
    error = ToolError(code=trouble.code, message=trouble.message)
    return CallOutcome(status=trouble.status, error=error)


def _failed_outcome(request: RequestedCall) -> CallOutcome:
    log.exception("the tool %s failed", request.name)
    message = f"{request.name} failed with an internal error; see the log of Holdfast for details."
    return CallOutcome(
        status=ResultStatus.ERROR, error=ToolError(code=ResultCode.FAILED, message=message)
    )
