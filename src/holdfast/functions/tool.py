"""`tool`: makes a tool of a Python function. Nothing is registered by it."""

import functools
import hashlib
import inspect
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, ParamSpec, TypeVar, overload

from holdfast.domain.canonical_json import canonical
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.tools import TOOL_NAME, Effect, is_reserved
from holdfast.functions.signatures import ANY_ARGUMENTS, TEXT_LARGEST, Signature, read_signature

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ask:
    """The answer of an approval function that has a question of its own."""

    question: str


EffectName = Literal["pure", "idempotent", "unsafe"]
ApprovalName = Literal["auto", "ask", "deny", "mode"]
EffectRule = EffectName | Effect | Callable[[dict[str, Any]], EffectName | Effect]
ApprovalRule = ApprovalName | Callable[[dict[str, Any]], ApprovalName | Ask]
OnError = Callable[[BaseException], str | None]

APPROVALS: Final = frozenset({"auto", "ask", "deny", "mode"})


class Tool(Generic[P, R]):
    """A function with its schema and its rules; calling it is a plain call of the function."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        effect: EffectRule = "unsafe",
        approval: ApprovalRule = "auto",
        timeout: float = 600.0,
        concurrency: int | None = None,
        parallel: bool = False,
        version: str = "",
        on_error: OnError | None = None,
    ) -> None:
        self.name = _require_name(function, name)
        _require_function(function, self.name)
        self.function = function
        self.signature: Signature = read_signature(function, name=self.name, doc=_doc(function))
        self.description = _require_description(
            self.name, self.signature.description if description is None else description
        )
        self.effect = _require_effect(self.name, effect)
        self.approval = _require_approval(self.name, approval)
        self.timeout = _require_timeout(self.name, timeout)
        self.concurrency = _require_concurrency(self.name, concurrency)
        self.parallel = _require_parallel(self.name, parallel, self.effect)
        self.version = version
        self.on_error = on_error
        self.is_async = _is_async(function)
        self.digest = hashlib.sha256(
            canonical(
                {
                    "name": self.name,
                    "parameters": self.parameters,
                    "effect": "function" if callable(self.effect) else str(self.effect),
                    "version": version,
                }
            )
        ).hexdigest()
        functools.update_wrapper(self, _inner(function), updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function; nothing is recorded."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments."""
        return self.signature.schema

    @property
    def definition(self) -> dict[str, Any]:
        """Return the tool as an agent defines one that a client runs."""
        if callable(self.approval):
            raise Invalid(
                Code.OPTION_NOT_OFFERED,
                f"{self.name} decides about its approval itself, which a server cannot ask; use "
                "auto, ask, deny or mode.",
                {"tool": self.name},
            )
        effect = Effect.UNSAFE if callable(self.effect) else self.effect
        return {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "approval": self.approval,
            "effect": str(effect),
            "parallel": self.parallel,
        }

    def effect_of(self, arguments: dict[str, Any]) -> Effect:
        """Return the effect of running a call twice; `unsafe` if the tool's function fails."""
        if not callable(self.effect):
            return Effect(self.effect)
        try:
            return Effect(self.effect(arguments))
        # The function is the program's own; nothing is known about the call if it fails.
        except Exception:
            log.exception("the effect of %s could not be determined", self.name)
            return Effect.UNSAFE


class UntypedTool(Tool[..., Any]):
    """A function that a loop of the user calls with arguments of its own; no model sees it."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        effect: EffectRule,
        approval: ApprovalRule,
        timeout: float,
    ) -> None:
        self.name = name
        self.function = function
        self.signature = ANY_ARGUMENTS
        self.description = name
        self.effect = _require_effect(name, effect)
        self.approval = _require_approval(name, approval)
        self.timeout = _require_timeout(name, timeout)
        self.concurrency = None
        self.parallel = False
        self.version = ""
        self.on_error = None
        self.is_async = _is_async(function)
        self.digest = ""


@overload
def tool(
    fn: Callable[P, R],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: EffectRule = "unsafe",
    approval: ApprovalRule = "auto",
    timeout: float = 600.0,
    concurrency: int | None = None,
    parallel: bool = False,
    version: str = "",
    on_error: OnError | None = None,
) -> Tool[P, R]: ...


@overload
def tool(
    fn: None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: EffectRule = "unsafe",
    approval: ApprovalRule = "auto",
    timeout: float = 600.0,
    concurrency: int | None = None,
    parallel: bool = False,
    version: str = "",
    on_error: OnError | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(fn: Callable[..., Any] | None = None, /, **rules: Any) -> Any:
    """Return the tool of a function, or a decorator that makes one.

    `effect` says what running a call twice does, `approval` whether a person is asked before it.
    """
    if fn is None:
        return functools.partial(tool, **rules)
    if isinstance(fn, Tool):
        raise Invalid(Code.TOOL_INVALID, f"{fn.name} is a tool already; pass its function.")
    return Tool(fn, **rules)


def as_tool(given: Any) -> Tool[..., Any]:
    """Return a tool as it is, and any other function with the default rules."""
    return given if isinstance(given, Tool) else Tool(given)


def _inner(function: Any) -> Any:
    return function.func if isinstance(function, functools.partial) else function


def _doc(function: Any) -> str | None:
    inner = _inner(function)
    if inspect.isroutine(inner):
        return inspect.getdoc(inner)
    # The class's own, because a subclass is another tool.
    return inspect.getdoc(type(inner).__call__) or type(inner).__doc__


def _is_async(function: Any) -> bool:
    inner = _inner(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(type(inner), "__call__", None)  # noqa: B004 — the method, not whether it is there
    )


def _require_name(function: Any, name: str | None) -> str:
    found = name or getattr(_inner(function), "__name__", None) or type(function).__name__
    if found == "<lambda>":
        raise _invalid("a lambda", "has no name; pass `name`")
    if not isinstance(found, str) or not TOOL_NAME.fullmatch(found):
        raise _invalid(
            str(found), "needs a name of at most 64 letters, digits, _ and -; pass `name`"
        )
    if is_reserved(found):
        raise Invalid(
            Code.TOOL_NAME_TAKEN,
            f"{found} is the name of a tool of Holdfast; pass another `name`.",
            {"name": found},
        )
    return found


def _require_function(function: Any, name: str) -> None:
    inner = _inner(function)
    if isinstance(inner, type):
        raise _invalid(name, "is a class; pass a function, or an object with `__call__`")
    if not callable(inner):
        raise _invalid(name, "cannot be called; pass a function")
    called = inner if inspect.isroutine(inner) else type(inner).__call__
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise _invalid(name, "is a generator; return a list, or report with `progress`")
    if isinstance(inner, staticmethod | classmethod):
        raise _invalid(name, "is an unbound method; pass the method of its class or object")


def _require_description(name: str, text: Any) -> str:
    if not isinstance(text, str) or not text.strip():
        raise _invalid(name, "needs a description; write a docstring, or pass `description`")
    if len(text.encode(errors="replace")) > TEXT_LARGEST:
        raise _invalid(name, "has a description of more than 4 KiB; shorten it")
    return text.strip()


def _require_effect(name: str, effect: Any) -> Any:
    if callable(effect) or effect in set(Effect):
        return effect
    raise _invalid(name, f"has the effect {effect!r}; say pure, idempotent or unsafe")


def _require_approval(name: str, approval: Any) -> Any:
    if callable(approval) or approval in APPROVALS:
        return approval
    raise _invalid(name, f"has the approval {approval!r}; say auto, ask, deny or mode")


def _require_timeout(name: str, timeout: Any) -> float:
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not is_number or not math.isfinite(timeout) or timeout <= 0:
        raise _invalid(name, "needs a timeout in seconds, above 0")
    return float(timeout)


def _require_concurrency(name: str, most: Any) -> int | None:
    if most is None or (isinstance(most, int) and not isinstance(most, bool) and most > 0):
        return most
    raise _invalid(name, "needs a concurrency above 0, or none")


def _require_parallel(name: str, parallel: Any, effect: Any) -> bool:
    if parallel and (callable(effect) or effect == Effect.UNSAFE):
        raise _invalid(name, "is parallel; that needs the effect pure or idempotent")
    return bool(parallel)


def _invalid(name: str, why: str) -> Invalid:
    return Invalid(Code.TOOL_INVALID, f"{name} cannot be a tool: it {why}.", {"function": name})
