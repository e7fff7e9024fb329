"""Tools that a client runs: offered and checked here, and run wherever the client is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.domain.text import visible_json
from holdfast.domain.tools import Effect, ResultCode, ToolClass, ToolSpec
from holdfast.ports.tools import RequestedCall, ToolWorkspace
from holdfast.services.agents import SchemaFault, check_value
from holdfast.tools.tool import CallPlan, LocalTool, ToolFailure


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
