"""Declares a command: its options are the fields of one dataclass, its help is its docstring."""

import asyncio
import dataclasses
import inspect
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, cast, get_type_hints

import typer
from typer.core import TyperCommand

from holdfast.cli.options import GlobalOptions
from holdfast.cli.output import Printer
from holdfast.domain.errors import Code, Invalid

T = TypeVar("T")
ExitCode = int | None
Command = Callable[[Printer, T], ExitCode | Coroutine[Any, Any, ExitCode]]

EPILOG: Final = (
    "All commands also accept --json, --config FILE, --color, -q, -v, --server "
    "URL and --version, anywhere on the line; see `holdfast --help`."
)


class _Command(TyperCommand):
    """A command whose usage shows a required argument as `ID`, not as `{ID}`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoOptions:
    """The options of a command that has none."""


def add_group(app: typer.Typer, name: str, help_text: str) -> typer.Typer:
    """Add a group of commands and return it."""
    group = typer.Typer(name=name, help=help_text, no_args_is_help=True)
    app.add_typer(group)
    return group


def command(
    group: typer.Typer,
    name: str,
    options: type[T],
    *,
    hidden: bool = False,
    only_here: bool = False,
) -> Callable[[Command[T]], Command[T]]:
    """Register a function as a command of a group; it returns the exit code, or None for 0.

    A command that works `only_here`, on files of this machine, is refused with `--server`.
    """

    def register(function: Command[T]) -> Command[T]:
        def run(ctx: typer.Context, **given: Any) -> int:
            settings = ctx.obj if isinstance(ctx.obj, GlobalOptions) else GlobalOptions()
            printer = Printer(settings)
            if only_here:
                require_local(settings, ctx.command_path)
            try:
                answer = function(printer, options(**given))
                done = _run(answer) if inspect.iscoroutine(answer) else answer
                # Here and not at exit, where a BrokenPipeError could no longer be caught.
                printer.flush()
            except BrokenPipeError:
                # The reader of the pipe, for example `head`, has exited; this is not an error.
                printer.discard_output()
                return 0
            return cast("int", done or 0)

        cast("Any", run).__signature__ = signature_of(options)
        run.__doc__ = function.__doc__
        group.command(name, cls=_Command, epilog=EPILOG, hidden=hidden)(run)
        return function

    return register


def _run(work: Coroutine[Any, Any, T]) -> T:
    # libuv makes a terminal it watches non-blocking, also for the shell and for our own output; and
    # it aborts if it gets the number of a standard stream that is closed.
    is_open = None not in (sys.stdin, sys.stdout, sys.stderr)
    return run_on_loop(work) if is_open and not sys.stdin.isatty() else asyncio.run(work)


def run_on_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run work as `asyncio.run` does, on the fastest event loop that is installed."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(work)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the fastest event loop that is installed; `None` stands for that of asyncio."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


def require_local(settings: GlobalOptions, what: str) -> None:
    """Refuse an operation on local files when a server is named."""
    if settings.server is not None:
        raise Invalid(
            Code.INVALID_INPUT,
            f"`{what}` works on local files; run it on the server's machine, without "
            "--server and with HOLDFAST_SERVER unset.",
            {"field": "--server"},
        )


def signature_of(options: type[Any]) -> inspect.Signature:
    """Return the signature from which typer reads the options."""
    hints = get_type_hints(options, include_extras=True)
    context = inspect.Parameter(
        "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    return inspect.Signature([context, *(_parameter(each, hints) for each in _fields(options))])


def _fields(options: type[Any]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(options)


def _parameter(field: dataclasses.Field[Any], hints: dict[str, Any]) -> inspect.Parameter:
    has_default = field.default is not dataclasses.MISSING
    return inspect.Parameter(
        field.name,
        # Keyword-only, so that a field without a default may follow one that has one.
        inspect.Parameter.KEYWORD_ONLY,
        default=field.default if has_default else inspect.Parameter.empty,
        annotation=hints[field.name],
    )
