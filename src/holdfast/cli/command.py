"""Declares a command: its options are the parameters of a function, its help is the docstring."""

import asyncio
import dataclasses
import gc
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar, cast

import typer
from typer.core import TyperCommand

from holdfast.cli.options import GlobalOptions
from holdfast.cli.output import Printer
from holdfast.domain.errors import Code, Invalid

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., int | Coroutine[Any, Any, int | None] | None])

# Objects made and not yet freed before the youngest generation is collected; 700 by default.
COLLECT_AFTER: Final = 10_000
EPILOG: Final = (
    "All commands also accept --json, --config FILE, --color, -q, -v, --server "
    "URL and --version, anywhere on the line; see `holdfast --help`."
)


class _Command(TyperCommand):
    """A command whose usage shows a required argument as `ID`, not as `{ID}`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]


def add_group(app: typer.Typer, name: str) -> typer.Typer:
    """Add a group of commands and return it; its help is in the table of `app.py`."""
    group = typer.Typer(name=name, no_args_is_help=True)
    app.add_typer(group)
    return group


def command(
    group: typer.Typer, name: str, *, only_here: bool = False
) -> Callable[[Command], Command]:
    """Register a function as a command of a group; it returns the exit code, or None for 0.

    Its options are its parameters after the printer, or the fields of a dataclass that it takes. A
    command that works `only_here`, on files of this machine, is refused with `--server`.
    """

    def register(function: Command) -> Command:
        _, *own = inspect.signature(function).parameters.values()
        options: Any = next((each.annotation for each in own), None)
        has_dataclass = dataclasses.is_dataclass(options)

        def run(ctx: typer.Context, **given: Any) -> int:
            settings = ctx.obj if isinstance(ctx.obj, GlobalOptions) else GlobalOptions()
            printer = Printer(settings)
            if only_here:
                require_local(settings, ctx.command_path)
            try:
                answer = (
                    function(printer, options(**given))
                    if has_dataclass
                    else function(printer, **given)
                )
                done = _run(answer) if inspect.iscoroutine(answer) else answer
                # Here and not at exit, where a BrokenPipeError could no longer be caught.
                printer.flush()
            except BrokenPipeError:
                # The reader of the pipe, for example `head`, has exited; this is not an error.
                printer.discard_output()
                return 0
            return cast("int", done or 0)

        cast("Any", run).__signature__ = (
            signature_of(options) if has_dataclass else with_context(own)
        )
        run.__doc__ = function.__doc__
        group.command(name, cls=_Command, epilog=EPILOG)(run)
        return function

    return register


def _run(work: Coroutine[Any, Any, T]) -> T:
    # libuv makes a terminal it watches non-blocking, also for the shell and for our own output; and
    # it aborts if it gets the number of a standard stream that is closed.
    is_open = None not in (sys.stdin, sys.stdout, sys.stderr)
    return run_on_loop(work) if is_open and not sys.stdin.isatty() else asyncio.run(work)


def run_on_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run work as `asyncio.run` does, on the fastest event loop that is installed."""
    # What exists now lives until the end, and most of what a turn makes is freed without the
    # collector: with the default threshold it takes a tenth of a turn's time.
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(work)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the fastest event loop that is installed; `None` means that of asyncio."""
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
    """Return the signature from which typer reads the fields of a dataclass as options."""
    return with_context(inspect.signature(options).parameters.values())


def with_context(parameters: Iterable[inspect.Parameter]) -> inspect.Signature:
    """Return a signature of options, with typer's context before them."""
    context = inspect.Parameter(
        "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    return inspect.Signature([context, *parameters])
