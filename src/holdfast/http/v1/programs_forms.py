"""Well-known programs on the wire."""

from msgspec import Struct
from msgspec.structs import asdict

from holdfast.domain.agent_processes import KnownProgram
from holdfast.http.v1.agents_forms import AcpRuntimeForm


class KnownProgramForm(Struct, frozen=True, kw_only=True):
    """A program that speaks the Agent Client Protocol; without a path it is not on this machine."""

    preset: str
    title: str
    path: str | None
    version: str | None
    install: str
    runtime: AcpRuntimeForm


class KnownProgramList(Struct, frozen=True):
    """All of them, those that are there first."""

    data: tuple[KnownProgramForm, ...]
    next_cursor: str | None = None


def program_form(program: KnownProgram) -> KnownProgramForm:
    """Return a program as it is shown."""
    runtime = AcpRuntimeForm(**asdict(program.runtime))
    return KnownProgramForm(**{**asdict(program), "runtime": runtime})
