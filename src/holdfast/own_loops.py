"""`turn` and `runtime`: a Python function runs turns, with everything recorded.

Both need the store in this process. `loops/` implements them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar
from uuid import UUID

from holdfast.children.model import ChildAnswer
from holdfast.domain.costs import Usage
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.messages import Message, Part
from holdfast.domain.sessions import Budget, Session, StopReason
from holdfast.domain.text import require_str
from holdfast.domain.tools import Grant

if TYPE_CHECKING:
    from holdfast.domain.ids import Owner, SessionId

ResumeName = Literal["replay", "history", "stop"]
L = TypeVar("L", bound="Callable[[Turn], Awaitable[str | None]]")


class TurnBranch(Protocol):
    """A part of a turn with an order of its own; each task of a loop needs one."""

    random: Random

    def branch(self, name: str) -> "TurnBranch": ...
    def uuid4(self) -> UUID: ...
    def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        run: Callable[..., Any] | None = None,
        effect: Literal["pure", "idempotent", "unsafe"] = "unsafe",
        approval: Any = "auto",
        timeout: float = 600,
        returns: Any = None,
    ) -> Awaitable[Any]: ...
    def spawn(
        self,
        agent: str,
        task: str,
        *,
        title: str | None = None,
        budget: Budget | None = None,
        grant: Grant | None = None,
        tools: Sequence[str] | None = None,
    ) -> Awaitable[ChildAnswer]: ...
    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        effect: str = "pure",
        model: str | None = None,
    ) -> Awaitable[Any]: ...


class Turn(TurnBranch, Protocol):
    """One turn of a loop of the user's own."""

    attempt: int

    @property
    def session(self) -> Session: ...
    @property
    def number(self) -> int: ...
    @property
    def messages(self) -> Sequence[Message]: ...
    @property
    def queued(self) -> Sequence[Message]: ...
    @property
    def started_at(self) -> datetime: ...
    @property
    def prompt(self) -> str: ...
    @property
    def is_replaying(self) -> bool: ...
    async def check_budget(self, model: str | None = None) -> None: ...
    async def delta(self, text: str, channel: str = "text") -> None: ...
    async def say(
        self,
        content: str | tuple[Part, ...],
        *,
        usage: Usage | None = None,
        model: str | None = None,
        request_id: str | None = None,
    ) -> None: ...
    def end(self, stop_reason: StopReason | str = ...) -> None: ...
    async def now(self) -> datetime: ...


class LoopService(Protocol):
    """Holds turns for programs, and runs the turns of registered loops."""

    def hold(
        self,
        owner: "Owner",
        session_id: "SessionId",
        content: str | tuple[Part, ...] | None,
        **options: Any,
    ) -> AbstractAsyncContextManager[Turn]: ...
    def register(self, function: Callable[..., Any], **options: Any) -> None: ...
    async def ready(self) -> None: ...


# The attribute of a function that `runtime` has marked: how it is registered.
_OPTIONS: Final = "__holdfast_runtime__"
_REMOTE: Final = "needs the store in the same process; use open_holdfast instead of connect"


def runtime(
    name: str,
    *,
    resume: ResumeName = "replay",
    version: str = "",
    concurrency: int = 64,
    park_after: float | None = None,
) -> Callable[[L], L]:
    """Mark a function as the loop of an agent, for `open_holdfast(runtimes=[…])`.

    The arguments are those of `Holdfast.runtime`.
    """
    require_str(name, field="name")
    options = {
        "name": name,
        "resume": resume,
        "version": version,
        "concurrency": concurrency,
        "park_after": park_after,
    }

    def mark(function: L) -> L:
        setattr(function, _OPTIONS, options)
        return function

    return mark


class LoopVerbs:
    """The verbs for loops of the user's own."""

    @property
    def _loops(self) -> LoopService | None:
        return None

    @property
    def _loop_owner(self) -> "Owner":
        raise NotImplementedError

    def turn(
        self,
        session_id: "SessionId",
        message: str | tuple[Part, ...] | None = None,
        *,
        id: str | None = None,
        wait: bool = False,
        resume: ResumeName = "replay",
        resume_within: float | None = 600,
        max_calls: int = 1_000,
    ) -> AbstractAsyncContextManager[Turn]:
        """Begin a turn with a message and run it in this block; leaving the block ends it.

        With the `id` of a message whose turn was cut off, the block continues that turn.
        """
        require_str(session_id, field="session_id")
        return self._local_loops("turn").hold(
            self._loop_owner,
            session_id,
            message,
            id=id,
            wait=wait,
            resume=resume,
            within=resume_within,
            max_calls=max_calls,
        )

    def runtime(
        self,
        name: str,
        *,
        resume: ResumeName = "replay",
        version: str = "",
        concurrency: int = 64,
        park_after: float | None = None,
    ) -> Callable[[L], L]:
        """Register a function as the loop of an agent with this slug; creates the agent.

        A turn that waits for an approval longer than `park_after` seconds leaves its process, and
        its loop is replayed when the answer is there.
        """
        require_str(name, field="name")
        loops = self._local_loops("runtime")

        def register(function: L) -> L:
            loops.register(
                function,
                name=name,
                resume=resume,
                version=version,
                concurrency=concurrency,
                park_after=park_after,
            )
            return function

        return register

    def _local_loops(self, verb: str) -> LoopService:
        loops = self._loops
        if loops is None:
            raise Invalid(Code.OPTION_NOT_OFFERED, f"{verb} {_REMOTE}.")
        return loops


async def register_runtimes(hf: LoopVerbs, functions: Sequence[Callable[..., Any]]) -> None:
    """Register functions that `runtime` has marked; returns when their agents exist."""
    loops = hf._local_loops("runtime")
    for function in functions:
        options = getattr(function, _OPTIONS, None)
        if options is None:
            raise Invalid(
                Code.INVALID_INPUT,
                "Each of `runtimes` is an async function with the decorator "
                '@holdfast.runtime("NAME").',
                {"field": "runtimes"},
            )
        loops.register(function, **options)
    await loops.ready()
