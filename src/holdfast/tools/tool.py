"""What a tool is: a name, strict arguments, a plan that changes nothing, and one act.

The order in which a call is judged is the toolbox's business.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from holdfast.domain.messages import ResultStatus
from holdfast.domain.tools import Effect, ResultCode, ToolClass
from holdfast.ports import RequestedCall, ToolWorkspace

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
    }
)


class ToolFailure(Exception):  # noqa: N818 — it is the tool's answer, and most often no error
    """Why a call cannot be done; told to the model, so it names no path outside the workplace."""

    def __init__(self, code: ResultCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> ResultStatus:
        """Return whether the call was refused, went wrong, or nobody knows."""
        if self.code is ResultCode.UNKNOWN:
            return ResultStatus.UNKNOWN
        return ResultStatus.DENIED if self.code in DENIALS else ResultStatus.ERROR


class UnansweredRequest(ToolFailure):
    """A request that went out and whose answer never came whole: it may have been done.

    The code is for calls that can be made again; of any other the outcome is unknown.
    """


class CallPlan(Struct, frozen=True, kw_only=True):
    """What a planned call would do.

    `targets` are everything outside of the arguments that decides what the act does: resolved
    paths, the content that would be replaced, the program that would run.
    """

    tool_class: ToolClass
    targets: tuple[str, ...] = ()
    # Whole, never cut: whoever agrees has to have seen all of it.
    question: str = ""
    preview: Mapping[str, str] = {}
    memory: str | None = None


@dataclass(frozen=True, kw_only=True)
class Tool(Generic[A]):
    """One tool. `plan` judges and aims, `act` does it; both raise `ToolTrouble`.

    `effect` may look at the arguments. `is_available` tells whether the tool can be offered at
    a place at all. `again` returns what the call aimed at when an earlier attempt at this very
    call has done its work already: a crash may have kept us from hearing of it.
    """

    name: str
    description: str
    arguments: type[A]
    effect: Callable[[A], Effect]
    plan: Callable[[ToolWorkspace, A], Awaitable[CallPlan]]
    act: Callable[[ToolWorkspace, A, RequestedCall], Awaitable[Any]]
    is_available: Callable[[ToolWorkspace], bool] = lambda _: True
    again: Callable[[ToolWorkspace, A, RequestedCall], Awaitable[CallPlan | None]] | None = None

    def parameters(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments as one plain object."""
        (schema,), parts = msgspec.json.schema_components([self.arguments])
        if "$ref" in schema:
            schema = parts[schema["$ref"].rpartition("/")[2]]
        return {key: value for key, value in schema.items() if key != "title"}


async def plan_read_only(_: ToolWorkspace, __: Any) -> CallPlan:
    """Plan a call that only looks."""
    return CallPlan(tool_class=ToolClass.READ)
