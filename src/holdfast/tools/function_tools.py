"""Functions of the program as tools: looks them up for a session and plans their calls."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from holdfast.domain.text import visible, visible_json
from holdfast.domain.tools import Effect, ResultCode, ToolClass
from holdfast.functions.calls import FunctionCall, FunctionRunner
from holdfast.functions.registry import FunctionRegistry
from holdfast.functions.signatures import InvalidArgumentsError
from holdfast.functions.tool import Ask, Tool
from holdfast.ports.llm import LlmTool
from holdfast.ports.tools import CallOutcome, PlannedCall, RequestedCall, ToolWorkspace
from holdfast.tools.tool import CallPlan, LocalTool, ToolFailure


class FunctionArguments(NamedTuple):
    """The arguments as the model sent them, and as the function gets them."""

    sent: dict[str, Any]
    values: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class FunctionTool(LocalTool[Any]):
    """A function of the program as a tool of the toolbox."""

    function: Tool[..., Any]
    runner: FunctionRunner

    def parse(self, arguments: Mapping[str, Any]) -> FunctionArguments:
        """Convert the arguments strictly; errors name the path but never show the value."""
        try:
            values = self.function.signature.convert(arguments)
        except InvalidArgumentsError as error:
            raise ToolFailure(
                ResultCode.INVALID_ARGUMENTS, f"The arguments are not valid: {error}."
            ) from None
        return FunctionArguments(dict(arguments), values)

    async def run(
        self, workspace: ToolWorkspace, arguments: FunctionArguments, planned: PlannedCall
    ) -> CallOutcome:
        """Run the function; its end is an outcome."""
        return await self.runner.run(
            FunctionCall(
                tool=self.function,
                values=arguments.values,
                workspace=workspace,
                planned=planned,
            )
        )


class FunctionTools:
    """The registered functions, as the toolbox uses them."""

    def __init__(self, registry: FunctionRegistry) -> None:
        self._registry = registry
        self._made: WeakKeyDictionary[Tool[..., Any], FunctionTool] = WeakKeyDictionary()

    def find(self, workspace: ToolWorkspace, name: str) -> FunctionTool | None:
        """Return the function of a name for a session."""
        function = self._registry.find(workspace.owner, workspace.session_id, name)
        if function is None:
            return None
        made = self._made.get(function)
        if made is None:
            made = self._made[function] = function_tool(function, self._registry.runner)
        return made

    def offers(self, workspace: ToolWorkspace) -> tuple[LlmTool, ...]:
        """Return the functions that are granted in a session."""
        if not self._registry.has_functions:
            return ()
        found = (self.find(workspace, name) for name in sorted(workspace.tools))
        return tuple(each.offer() for each in found if each is not None)


def function_tool(function: Tool[..., Any], runner: FunctionRunner) -> FunctionTool:
    """Return a function as a tool of a toolbox."""

    async def plan(_: ToolWorkspace, arguments: FunctionArguments) -> CallPlan:
        return await _plan(function, runner, arguments)

    async def act(_: ToolWorkspace, __: Any, ___: RequestedCall) -> Any:
        raise NotImplementedError("a function runs with its planned call")

    return FunctionTool(
        name=function.name,
        description=function.description,
        arguments=FunctionArguments,
        schema=function.parameters,
        effect=lambda arguments: function.effect_of(arguments.sent),
        plan=plan,
        act=act,
        is_parallel=function.parallel,
        function=function,
        runner=runner,
    )


async def _plan(
    function: Tool[..., Any], runner: FunctionRunner, arguments: FunctionArguments
) -> CallPlan:
    said = await runner.approval(function, arguments.sent)
    if said == "deny":
        raise ToolFailure(ResultCode.REJECTED, f"The rules of {function.name} do not allow this.")
    rule = "ask" if isinstance(said, Ask) else said
    effect = function.effect_of(arguments.sent)
    # A pure function needs no approval, unless its rule requires one.
    is_read = effect is Effect.PURE and rule in {"auto", "mode"}
    return CallPlan(
        tool_class=ToolClass.READ if is_read else ToolClass.FUNCTION,
        targets=(function.digest, rule),
        question=_question(function, said, arguments.sent) if not is_read else "",
        memory=None if effect is Effect.UNSAFE else f"function:{function.name}",
        approval=None if is_read or rule == "auto" else rule,
        slot=runner.slot(function),
    )


def _question(function: Tool[..., Any], said: str | Ask, arguments: dict[str, Any]) -> str:
    """Return the whole call, below the tool's own question."""
    own = [visible(said.question)] if isinstance(said, Ask) else []
    call = f"Call the function {function.name} with the arguments"
    return "\n".join([*own, call, visible_json(arguments)])
