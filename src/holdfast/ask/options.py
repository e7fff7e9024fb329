"""The options of `ask` and `stream`, and which of them go together."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypedDict, cast

from holdfast.domain.approvals import Approval, ApprovalMode, Decision
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.sessions import Budget, SessionContext
from holdfast.domain.text import wrong_type

# Answers the questions of a turn; may be asynchronous.
Approve = Callable[[Approval], bool | Decision | Awaitable[bool | Decision]]


class AskOptions(TypedDict, total=False):
    """The options of `ask` and `stream`; those up to `tags` belong to the session it opens."""

    agent: str | None
    model: str | None
    # Appended to the agent's system prompt.
    system: str | None
    # Functions, and names of tools to which the agent is narrowed.
    tools: "Sequence[Callable[..., Any] | str] | None"
    context: SessionContext | None
    approval: ApprovalMode | Literal["deny", "ask", "edits", "auto"] | None
    budget: Budget | None
    turn_cap: int | None
    title: str | None
    tags: Sequence[str] | None
    session: str | None
    # The id of the message: with the same one nothing is sent twice.
    id: str | None
    # Makes the ids of session and message; for a question that is asked once.
    key: str | None
    timeout: float | None
    approve: Approve | None
    on_wait: Literal["wait", "return"]
    # The turn goes on after a timeout or a cancellation.
    detach: bool
    # False: a turn that failed is returned, too.
    check: bool


_OPENING: Final = (
    *("agent", "model", "system", "tools", "context", "approval", "budget"),
    *("turn_cap", "title", "tags"),
)


_TEXTS: Final = ("agent", "model", "system", "title", "session", "id", "key")
# What each element of a list has to be.
_LISTS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "tools": lambda each: isinstance(each, str) or callable(each),
    "tags": lambda each: isinstance(each, str),
}
# The other types, and how an error names them.
_TYPES: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    **dict.fromkeys(_TEXTS, ((str,), "a str")),
    "tools": ((list, tuple), "a list of functions and names"),
    "tags": ((list, tuple), "a list of str"),
    "context": ((SessionContext,), "a SessionContext"),
    "approval": ((str,), "an ApprovalMode"),
    "budget": ((Budget,), "a Budget"),
    "turn_cap": ((int,), "an int"),
    "timeout": ((int, float), "a number of seconds"),
    "on_wait": ((str,), "wait or return"),
    "detach": ((bool,), "a bool"),
    "check": ((bool,), "a bool"),
}


def require_options(options: AskOptions) -> AskOptions:
    """Return the options that are set; refuses wrong ones before anything is stored."""
    unknown = sorted(set(options) - set(AskOptions.__annotations__))
    if unknown:
        raise TypeError(f"ask has no option {', '.join(unknown)}")
    given: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    for name, value in given.items():
        types, rule = _TYPES.get(name, ((object,), ""))
        is_typed = isinstance(value, types)
        if not is_typed or not (name not in _LISTS or all(map(_LISTS[name], value))):
            raise wrong_type(value, field=name, rule=f"{name} must be {rule}")
    if given.get("approval", ApprovalMode.ASK) not in set(ApprovalMode):
        raise Invalid(
            Code.INVALID_INPUT,
            f"approval must be one of {', '.join(ApprovalMode)}.",
            {"field": "approval"},
        )
    if not callable(given.get("approve", print)):
        raise Invalid(Code.INVALID_INPUT, "approve must be a function.", {"field": "approve"})
    if given.get("key", "k") == "":
        raise Invalid(Code.INVALID_INPUT, "key must not be empty.", {"field": "key"})
    if given.get("on_wait", "wait") not in ("wait", "return"):
        raise Invalid(Code.INVALID_INPUT, "on_wait must be wait or return.", {"field": "on_wait"})
    _require_together(given)
    return cast("AskOptions", given)


def _require_together(given: Mapping[str, Any]) -> None:
    """Refuse options that do not go together."""
    if "session" in given:
        if "key" in given:
            raise Invalid(
                Code.OPTION_NOT_OFFERED,
                "key and session cannot be given together: a key makes the session, too. Leave "
                "session out, or repeat the question with the same id instead of a key.",
                {"options": ["key"]},
            )
        wrong = [name for name in _OPENING if name in given and name != "tools"]
        # A new function joins a session; names only narrow when it is opened.
        wrong += ["tools"] if any(isinstance(each, str) for each in given.get("tools", ())) else []
        remedy = "change the session with sessions.update, or leave out session"
    else:
        wrong = ["id"] if "key" in given and "id" in given else []
        remedy = "key makes the id; leave one of them out"
    if wrong:
        raise Invalid(
            Code.OPTION_NOT_OFFERED,
            f"{', '.join(wrong)} cannot be given here: {remedy}.",
            {"options": wrong},
        )
