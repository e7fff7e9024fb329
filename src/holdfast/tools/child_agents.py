"""`invoke_agent`: gives a task to another agent, which works in a session of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from holdfast.children.model import ChildAnswer, ChildRequest
from holdfast.children.service import Children
from holdfast.domain.errors import (
    Code,
    Conflict,
    Denied,
    HoldfastError,
    Invalid,
    LimitReached,
    NotFound,
)
from holdfast.domain.ids import CallId, Owner, SessionId
from holdfast.domain.messages import ResultStatus, ToolError
from holdfast.domain.sessions import Budget
from holdfast.domain.tools import INVOKE_AGENT, Effect, Grant, ResultCode, ToolClass
from holdfast.ports.llm import LlmTool
from holdfast.ports.tools import CallOutcome, PlannedCall, RequestedCall, ToolWorkspace
from holdfast.tools.tool import CallPlan, LocalTool, ToolFailure

_TEXT: Final = (
    "Give a task to another agent and return its answer. It works in a session of its own and sees "
    "nothing of this conversation, so the task must say all that it needs."
)


class ChildArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `invoke_agent` takes."""

    agent: str
    task: Annotated[str, Meta(min_length=1)]
    title: Annotated[str, Meta(min_length=1, max_length=255)] | None = None


class SpawnArguments(ChildArguments, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a program may say besides."""

    budget: Budget | None = None
    grant: Grant | None = None
    tools: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class ChildTool(LocalTool[Any]):
    """`invoke_agent` as a session has it: with the agents that it may start."""

    agents: tuple[str, ...]
    children: Children

    def offer(self) -> LlmTool:
        """Return the tool as a model gets it."""
        schema = self.parameters()
        properties = schema["properties"]
        properties["agent"] = {"type": "string", "enum": list(self.agents)}
        return LlmTool(name=self.name, description=self.description, parameters=schema)

    async def run(
        self, workspace: ToolWorkspace, arguments: ChildArguments, planned: PlannedCall
    ) -> CallOutcome:
        """Return the answer of the child; raises `TurnPausedError` while there is none."""
        request = ChildRequest(**msgspec.structs.asdict(arguments))
        try:
            answer = await self.children.invoke(
                Owner(workspace.owner),
                SessionId(workspace.session_id),
                CallId(planned.asked.id),
                request,
                may_pause=workspace.may_pause,
            )
        except (Invalid, Denied, NotFound, Conflict, LimitReached) as error:
            raise ToolFailure(_code_of(error), error.message) from error
        return _outcome(answer, arguments.agent)


def find_child_tool(
    workspace: ToolWorkspace, name: str, children: Children | None
) -> ChildTool | None:
    """Return the tool that starts agents, if the session may start any."""
    if name != INVOKE_AGENT or children is None or not workspace.agents:
        return None
    return child_tool(children, workspace.agents, ChildArguments)


def child_tool(
    children: Children, agents: tuple[str, ...], arguments: type[ChildArguments]
) -> ChildTool:
    """Return the tool that starts some agents; without names, any agent of the owner."""

    async def plan(_: ToolWorkspace, asked: ChildArguments) -> CallPlan:
        if agents and asked.agent not in agents:
            raise ToolFailure(
                ResultCode.NOT_GRANTED,
                f"The agent {asked.agent} is not granted; the agents are {', '.join(agents)}.",
            )
        return CallPlan(tool_class=ToolClass.READ, goes_on=True)

    return ChildTool(
        name=INVOKE_AGENT,
        description=_TEXT,
        arguments=arguments,
        effect=_idempotent,
        plan=plan,
        act=_act,
        is_parallel=True,
        agents=agents,
        children=children,
    )


def _idempotent(_: Any) -> Effect:
    # The child is found again by the id of the call.
    return Effect.IDEMPOTENT


async def _act(_: ToolWorkspace, __: Any, ___: RequestedCall) -> Any:
    raise NotImplementedError("a child runs with its planned call")


_CODES: Final[Mapping[Code, ResultCode]] = {
    Code.CHILD_LIMIT: ResultCode.LIMIT,
    Code.GRANT_EXCEEDED: ResultCode.NOT_GRANTED,
    Code.INVALID_INPUT: ResultCode.INVALID_ARGUMENTS,
    Code.INVALID_TEXT: ResultCode.INVALID_ARGUMENTS,
    Code.MESSAGE_EMPTY: ResultCode.INVALID_ARGUMENTS,
    Code.MESSAGE_INVALID: ResultCode.INVALID_ARGUMENTS,
    Code.MESSAGE_TOO_LARGE: ResultCode.INVALID_ARGUMENTS,
}


def _code_of(error: HoldfastError) -> ResultCode:
    # The agent cannot be started as things are: it is archived, has no slot, needs a repository.
    return _CODES.get(error.code, ResultCode.UNAVAILABLE)


def _outcome(answer: ChildAnswer, agent: str) -> CallOutcome:
    result: dict[str, Any] = {
        "session_id": answer.session_id,
        "stop_reason": answer.stop_reason,
        "text": answer.text,
    }
    if answer.value is not None:
        result["value"] = answer.value
    if answer.is_answered:
        return CallOutcome(status=ResultStatus.OK, result=result)
    how = answer.stop_reason or "its session was closed"
    text = f"The agent {agent} has not answered ({how}); its session is {answer.session_id}."
    if answer.text:
        text += f" It said last: {answer.text}"
    error = ToolError(code=ResultCode.CHILD_FAILED, message=text)
    return CallOutcome(status=ResultStatus.ERROR, result=result, error=error)
