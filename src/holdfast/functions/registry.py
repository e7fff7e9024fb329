"""The functions of this process by name: those of the process, and those of single sessions."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from msgspec.structs import replace

from holdfast.domain.agents import functions_of
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.sessions import Session, SessionRequest
from holdfast.functions.calls import FunctionRunner, SettleLate
from holdfast.functions.tool import Tool, as_tool

AnyTool = Tool[..., Any]
# Adds names to the tools of a session, with a notice in its record.
AddNames = Callable[[Owner, SessionId, tuple[str, ...]], Awaitable[None]]
Opening = Callable[..., Awaitable[Session]]
_PROCESS: Final = "This process"


class FunctionRegistry:
    """The tools of one `Holdfast`; they serve the owner that it was opened for."""

    def __init__(self, owner: Owner, runner: FunctionRunner, tools: Iterable[Any] = ()) -> None:
        self.owner = owner
        self.runner = runner
        self._process: dict[str, AnyTool] = {}
        self._sessions: dict[SessionId, dict[str, AnyTool]] = {}
        self._add_names: AddNames | None = None
        self._announce: Callable[[Iterable[str]], None] = lambda _: None
        self._attached: Callable[[SessionId], Awaitable[None]] | None = None
        self.add(*tools)

    def connect(
        self,
        add_names: AddNames,
        settle_late: SettleLate,
        announce: Callable[[Iterable[str]], None],
        attached: Callable[[SessionId], Awaitable[None]],
    ) -> None:
        """Set what writes to sessions; it is made later, because its turns look functions up.

        `announce` and `attached` continue the turns that wait for functions.
        """
        self._add_names = add_names
        self._announce, self._attached = announce, attached
        announce(map(need_of, self._process))
        self.runner.settle_late = settle_late

    def add(self, *tools: Callable[..., Any]) -> None:
        """Register functions for all sessions of the owner whose agent names them."""
        self._process = merge_tools(self._process, map(as_tool, tools), _PROCESS)
        self._announce(map(need_of, self._process))

    async def attach(self, session_id: SessionId, tools: Iterable[Callable[..., Any]]) -> None:
        """Register functions for one session; a new name joins its tools, with a notice."""
        given = [as_tool(each) for each in tools]
        merged = self._with(session_id, given)
        if self._add_names is not None:
            names = tuple(each.name for each in given)
            await self._add_names(self.owner, session_id, names)
        self._sessions[session_id] = merged
        if self._attached is not None:
            await self._attached(session_id)

    async def open_with(
        self, tools: Iterable[Any], request: SessionRequest | None, opening: Opening
    ) -> Session:
        """Open a session with functions, which join the agent's tools, and names of its tools."""
        given = list(tools)
        functions = [as_tool(each) for each in given if not isinstance(each, str)]
        found = merge_tools({}, functions, "The list")
        request = _narrowed(request, [each for each in given if isinstance(each, str)], found)
        session = await opening(request, functions=tuple(found))
        if found:
            self._sessions[session.id] = self._with(session.id, found.values())
            # Another process may pause its turns, for want of the functions.
            if self._attached is not None:
                await self._attached(session.id)
        return session

    @property
    def has_functions(self) -> bool:
        """Return whether any function is registered."""
        return bool(self._process or self._sessions)

    def find(self, owner: str, session_id: str, name: str) -> AnyTool | None:
        """Return a function of the session, else of the process."""
        if owner != self.owner:
            return None
        own = self._sessions.get(SessionId(session_id))
        return (own.get(name) if own else None) or self._process.get(name)

    def missing(self, session: Session) -> list[str]:
        """Return the functions of a session that this process does not have."""
        names = functions_of(session.tools)
        # Checked first, because few sessions have functions and every turn asks.
        if not names:
            return names
        return [name for name in names if self.find(session.owner, session.id, name) is None]

    def names(self, owner: Owner) -> frozenset[str]:
        """Return the names of the functions that all sessions of an owner can use."""
        return frozenset(self._process) if owner == self.owner else frozenset()

    def close(self) -> None:
        """Release the threads."""
        self.runner.close()

    def _with(self, session_id: SessionId, tools: Iterable[AnyTool]) -> dict[str, AnyTool]:
        return merge_tools(self._sessions.get(session_id, {}), tools, f"Session {session_id}")


def need_of(name: str) -> str:
    """Return the capability that a process needs to run a function."""
    return f"tool:{name}"


def merge_tools(
    known: dict[str, AnyTool], tools: Iterable[AnyTool], where: str
) -> dict[str, AnyTool]:
    """Return known tools and further ones; refuses another tool of a name that is known."""
    found = dict(known)
    for tool in tools:
        first = found.setdefault(tool.name, tool)
        if not _is_same(first, tool):
            raise Invalid(
                Code.TOOL_NAME_TAKEN,
                f"{where} has another tool {tool.name} already ({_place(first)}); pass `name`.",
                {"name": tool.name},
            )
    return found


def _narrowed(
    request: SessionRequest | None, names: list[str], functions: Iterable[str]
) -> SessionRequest | None:
    """Return the request with the names; a function that is given too needs no name."""
    if not names:
        return request
    if request is not None and request.tools is not None:
        raise Invalid(Code.INVALID_INPUT, "Name tools in `tools` or in the request, not both.")
    kept = tuple(name for name in names if name not in functions)
    return replace(request or SessionRequest(), tools=kept)


def _is_same(one: AnyTool, other: AnyTool) -> bool:
    """Return whether both are the same object, or made of the same function by the same rules."""
    # Not by identity: each access to a method makes a new object.
    is_equal = one.function == other.function and one.approval == other.approval
    return one is other or (is_equal and one.digest == other.digest)


def _place(tool: AnyTool) -> str:
    code = getattr(tool.function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(tool.function)
