"""Files of a repository, for a program that has us read and write them: inside, or not at all."""

from collections.abc import Mapping
from typing import Final, Literal, Protocol

from msgspec import Struct

from holdfast.domain.tools import ToolClass

Trouble = Literal["outside", "missing", "not_a_file", "not_text", "too_large", "failed"]


class FileTrouble(Exception):  # noqa: N818 — it is an answer, and most often no error
    """Why a file cannot be read or written; told to the program, so it names nothing outside."""

    def __init__(self, kind: Trouble, message: str) -> None:
        super().__init__(message)
        self.kind: Trouble = kind
        self.message = message


class PlannedWrite(Struct, frozen=True, kw_only=True):
    """A write that may be done: what it is, and the digests of what is there and what would be.

    `question` shows the change whole; `memory` names what a yes for the whole session would cover.
    """

    path: str
    tool_class: ToolClass
    before: str | None
    after: str
    question: str
    memory: str | None = None


# Before the name of each variable of a command that is run covered.
COVERED_VARIABLE: Final = "+"


class RepositoryFiles(Protocol):
    """Files below a repository's folder; every verb raises `FileTrouble`."""

    async def read(self, folder: str, path: str) -> str:
        """Return the text of a file, by its absolute path."""

    async def plan(self, folder: str, path: str, content: str) -> PlannedWrite:
        """Judge a write; nothing is changed."""

    async def write(self, folder: str, planned: PlannedWrite, content: str) -> None:
        """Write a file whole, if what is there is still what was planned with."""

    async def change(self, path: str, before: str | None, after: str) -> str:
        """Return a change of a file as whoever is asked is shown it: whole, nothing hidden."""

    async def folder(self, folder: str, path: str) -> str:
        """Return the real path of a folder inside the repository."""

    async def covering(self, folder: str) -> tuple[str, ...] | None:
        """Return what runs a command so that protected paths hold for it: the words before it.

        The command's variables then have `COVERED_VARIABLE` before their names. `None` where
        protected paths do not hold, and no words where the user has said that this may be.
        """

    async def class_of(self, folder: str, paths: tuple[str, ...]) -> ToolClass:
        """Return what changing these files is; what lies outside is never a plain write."""

    async def status(self, folder: str) -> Mapping[str, str] | None:
        """Return what differs from what is committed, by path; nothing if nobody can tell."""
