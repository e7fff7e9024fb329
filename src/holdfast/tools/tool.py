"""The definition of a tool: a name, strict arguments, a side-effect-free plan, and one act.

The order in which a call is validated belongs to `toolbox.py`.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from holdfast.domain.messages import ResultStatus
from holdfast.domain.tools import Effect, ResultCode, ToolClass
from holdfast.ports.llm import LlmTool
from holdfast.ports.tools import (
    CallOutcome,
    CallSlot,
    PlannedCall,
    RequestedCall,
    ToolWorkspace,
)

A = TypeVar("A", bound=Struct)

DENIALS: Final = frozenset(
    {
        ResultCode.NOT_GRANTED,
        ResultCode.OUTSIDE_SCOPE,
        ResultCode.PROTECTED_PATH,
        ResultCode.COMMAND_NOT_ALLOWED,
        ResultCode.INSECURE_URL,
        ResultCode.DOMAIN_NOT_ALLOWED,
        ResultCode.ADDRESS_BLOCKED,
        ResultCode.FILTER_NEEDED,
        ResultCode.TARGET_CHANGED,
        ResultCode.REJECTED,
    }
)


class ToolFailure(Exception):  # noqa: N818 — the result of a call, often not an error
    """Why a call failed; the model reads it, so it names no path outside the workspace."""

    def __init__(self, code: ResultCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> ResultStatus:
        """Return whether the call was denied, failed, or has an unknown outcome."""
        if self.code is ResultCode.UNKNOWN:
            return ResultStatus.UNKNOWN
        return ResultStatus.DENIED if self.code in DENIALS else ResultStatus.ERROR


class UnansweredRequest(ToolFailure):
    """A request that was sent but not fully answered: it may have been executed.

    The code applies to repeatable calls; for any other call the outcome is unknown.
    """


class CallPlan(Struct, frozen=True, kw_only=True):
    """What a planned call would do.

    `targets` is everything besides the arguments that determines the effect: resolved paths, the
    content that would be replaced, the program that would run.
    """

    tool_class: ToolClass
    targets: tuple[str, ...] = ()
    # Never truncated, because an approval must cover everything it shows.
    question: str = ""
    preview: Mapping[str, str] = {}
    memory: str | None = None
    approval: str | None = None
    slot: CallSlot | None = None
    client_timeout: float | None = None
    goes_on: bool = False


@dataclass(frozen=True, kw_only=True)
class LocalTool(Generic[A]):
    """One tool. `plan` checks the call, `act` executes it; both raise `ToolFailure`.

    `is_available` returns whether the tool can be offered in a workspace. `again` returns the
    original plan if an earlier attempt at the same call has already succeeded; a crash may have
    lost its result.
    """

    name: str
    description: str
    arguments: type[A]
    effect: Callable[[A], Effect]
    plan: Callable[[ToolWorkspace, A], Awaitable[CallPlan]]
    act: Callable[[ToolWorkspace, A, RequestedCall], Awaitable[Any]]
    is_available: Callable[[ToolWorkspace], bool] = lambda _: True
    again: Callable[[ToolWorkspace, A, RequestedCall], Awaitable[CallPlan | None]] | None = None
    is_parallel: bool = False
    # The JSON schema of the arguments, if `arguments` is not a type that implies one.
    schema: Mapping[str, Any] | None = None

    def offer(self) -> LlmTool:
        """Return the tool as a model gets it."""
        return LlmTool(name=self.name, description=self.description, parameters=self.parameters())

    def parameters(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments as one object without references."""
        if self.schema is not None:
            return dict(self.schema)
        (schema,), parts = msgspec.json.schema_components([self.arguments])
        if "$ref" in schema:
            schema = parts[schema["$ref"].rpartition("/")[2]]
        return {key: value for key, value in schema.items() if key != "title"}

    def parse(self, arguments: Mapping[str, Any]) -> Any:
        """Convert the arguments to the tool's type; raises `msgspec.ValidationError`."""
        return msgspec.convert(arguments, self.arguments)

    async def run(
        self, workspace: ToolWorkspace, arguments: Any, planned: PlannedCall
    ) -> CallOutcome:
        """Execute a planned call; raises `ToolFailure`."""
        result = await self.act(workspace, arguments, planned.asked)
        return CallOutcome(status=ResultStatus.OK, result=result)


async def plan_read_only(_: ToolWorkspace, __: Any) -> CallPlan:
    """Plan a read-only call."""
    return CallPlan(tool_class=ToolClass.READ)
