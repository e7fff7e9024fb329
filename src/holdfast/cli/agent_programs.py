"""`holdfast agents detect|check|sessions`, and what can be said about a program at its creation."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from holdfast.acp.client.presets import PRESETS, preset_fields
from holdfast.cli.commands import Nothing
from holdfast.cli.opening import opened_here
from holdfast.cli.options import OneAgent
from holdfast.cli.output import Printer
from holdfast.cli.places import working_dir
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.errors import Code, Invalid, Unavailable

if TYPE_CHECKING:
    from holdfast.acp.client.agent_command import StartSettings
    from holdfast.acp.client.presets import DetectedAgent


async def show_detected(printer: Printer, _: Nothing) -> None:
    """Look for well-known agents on this machine.

    Each of them can be made an agent of yours with `agents create --preset NAME`.
    """
    from holdfast.acp.client.presets import detect

    found = await detect(os.environ)
    # Those that are there first: they are what can be used now.
    found.sort(key=lambda each: each.path is None)
    printer.listing(
        found,
        None,
        ("PRESET", "AGENT", "VERSION", "PROGRAM"),
        [(each.preset, each.title, each.version or "-", _where(each)) for each in found],
    )


def _where(each: "DetectedAgent") -> str:
    return each.path or f"not there; {each.install}"


@dataclass(frozen=True, kw_only=True)
class CheckOptions(OneAgent):
    """How closely to look."""

    deep: Annotated[
        bool, typer.Option("--deep", help="Have it open a session, too, in an empty folder.")
    ] = False


async def check(printer: Printer, wanted: CheckOptions) -> None:
    """Start an agent's program, hear who it is, and end it.

    Nothing is asked of a model.
    """
    from holdfast.acp.client.probe import probe_agent

    async with _yard(printer, wanted.ref) as (start_settings, runtime):
        found = await probe_agent(start_settings, runtime, is_deep=wanted.deep)
    printer.record(
        found,
        {
            "agent": " ".join(filter(None, [found.name, found.version])) or "it does not say",
            "protocol": found.protocol,
            "can": ", ".join(found.can) or "nothing beyond the least",
            "sign in": ", ".join(found.sign_in) or None,
            "session": "opened" if wanted.deep else None,
            "modes": ", ".join(found.modes or ()) or None,
        },
    )


@dataclass(frozen=True, kw_only=True)
class KeptOptions(OneAgent):
    """Which of the conversations that a program keeps."""

    cwd: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Of this folder, not of the current one.")
    ] = None
    all: Annotated[bool, typer.Option("--all", help="Of every folder.")] = False


async def show_kept(printer: Printer, wanted: KeptOptions) -> None:
    """List the sessions that an agent's program keeps by itself.

    They are the program's own, also those that it had with others than Holdfast.
    """
    from holdfast.acp.client.probe import list_agent_sessions

    folder = working_dir(wanted.cwd)
    if folder is None:
        raise Invalid(Code.NOT_A_FOLDER, "There is no current folder; name one with --cwd.")
    async with _yard(printer, wanted.ref) as (start_settings, runtime):
        found = await list_agent_sessions(start_settings, runtime, folder, is_everywhere=wanted.all)
    printer.listing(
        found,
        None,
        ("ID", "UPDATED", "FOLDER", "TITLE"),
        [(each.id, each.updated_at or "-", each.folder or "-", each.title or "") for each in found],
    )
    if not found:
        printer.remark("It keeps none of this folder; --all shows those of every folder.")


@asynccontextmanager
async def _yard(printer: Printer, ref: str) -> "AsyncIterator[tuple[StartSettings, AcpRuntime]]":
    """Give what a program is started with; what it complained is told without our secrets."""
    from holdfast.wiring import build_process_registry

    async with opened_here(printer) as holdfast:
        agent = await holdfast.agents.get(holdfast.owner, ref)
        if not isinstance(agent.runtime, AcpRuntime):
            raise Invalid(
                Code.INVALID_INPUT,
                f"Agent {agent.slug} asks a model; it has no program to look at.",
            )
        try:
            yield build_process_registry(holdfast.config, holdfast.secrets), agent.runtime
        except Unavailable as error:
            clean = holdfast.secrets.scrubber.clean
            details = {name: clean(str(value)) for name, value in error.details.items()}
            raise Unavailable(error.code, clean(error.message), details) from None


@dataclass(frozen=True, kw_only=True)
class ProgramWishes:
    """What can be said about an agent that is a program of its own."""

    preset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"Begin with this: {', '.join(sorted(PRESETS))}."),
    ] = None
    command: Annotated[
        str | None,
        typer.Option(metavar="PROGRAM", help="A program that speaks the Agent Client Protocol."),
    ] = None
    arg: Annotated[
        list[str] | None, typer.Option(metavar="ARG", help="An argument of it; repeatable.")
    ] = None
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="A variable for it; repeatable. Never a secret."),
    ] = None
    env_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A variable of yours that it gets; repeatable."),
    ] = None
    mode: Annotated[
        str | None, typer.Option(metavar="MODE", help="The mode it works in, of those it offers.")
    ] = None

    def fields(self) -> dict[str, Any]:
        """Return the fields that make it; nothing where no program is meant."""
        if self.preset is not None and self.preset not in PRESETS:
            raise Invalid(
                Code.INVALID_INPUT,
                f"There is no preset {self.preset}; there are {', '.join(sorted(PRESETS))}.",
                {"field": "--preset"},
            )
        if self.preset is not None:
            made = preset_fields(self.preset, is_root=os.geteuid() == 0)
        elif self.command is not None:
            made = {"runtime": AcpRuntime(command=self.command), "grant": None}
        else:
            self._require_nothing()
            return {}
        return {**made, "runtime": self._changed(made["runtime"])}

    def _changed(self, runtime: AcpRuntime) -> AcpRuntime:
        """Return the program with what was said; its own name and arguments go together."""
        options = dict(runtime.options)
        if self.env:
            own = options.get("environment", {})
            options["environment"] = own | dict(map(_variable, self.env))
        if self.mode is not None:
            options["mode"] = self.mode
        if self.arg or self.command:
            runtime = replace(runtime, args=tuple(self.arg or runtime.args))
        return replace(
            runtime,
            command=self.command or runtime.command,
            env_names=tuple(dict.fromkeys([*runtime.env_names, *(self.env_name or ())])),
            options=options,
        )

    def _require_nothing(self) -> None:
        said = {
            "--arg": self.arg,
            "--env": self.env,
            "--env-name": self.env_name,
            "--mode": self.mode,
        }
        named = [flag for flag, value in said.items() if value]
        if named:
            raise Invalid(
                Code.INVALID_INPUT,
                f"{', '.join(named)} is about a program; name it with --preset or --command.",
            )


def _variable(text: str) -> tuple[str, str]:
    from holdfast.config.validation import is_credential_variable

    name, sign, value = text.partition("=")
    if not sign or not name:
        raise Invalid(Code.INVALID_INPUT, "A variable is written --env NAME=VALUE.")
    if is_credential_variable(name):
        # Its value would lie in the store as it is.
        raise Invalid(
            Code.INVALID_INPUT,
            f"{name} looks like a credential; keep it in your environment or the keychain, and "
            f"say --env-name {name}.",
            {"field": "--env"},
        )
    return name, value
