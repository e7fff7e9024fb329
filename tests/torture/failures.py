"""Sessions that once failed, somewhere: each a file with its rows, and what is derived from them.

`python -m tests.torture.failures` derives anew, for a new file or a change that is meant; what
changed is then in the difference, to be read by a person.
"""

import asyncio
import hashlib
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from holdfast import Holdfast, RunScope, open_holdfast
from holdfast.app import Environment
from holdfast.config import load
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.events import ToolStarted
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.messages import Part, ResultStatus, Role, ToolResult
from holdfast.domain.sessions import admit_turn
from holdfast.engine.projection import project
from holdfast.services.journal import Journal, SessionWriter
from holdfast.services.stamping import IdFactory, Stamping
from holdfast.workflows.session_export import ExportFormat
from tests.builders import an_id
from tests.stand_ins import SeededRandomness, SettableClock, StandInMachine
from tests.torture.strict import prefix_faults

FOLDER = Path(__file__).with_name("failed")


class FailedRow(Struct, frozen=True, kw_only=True):
    """A row as it was written, in the turn it was written in."""

    turn: int
    role: Role
    parts: tuple[Part, ...]


class Derived(Struct, frozen=True, kw_only=True):
    """What follows from the rows alone: their chain, the next request, and both exports."""

    chain: str
    request: list[dict[str, Any]]
    exports: dict[str, str]


class FailedSession(Struct, frozen=True, kw_only=True):
    """`why` says what the failure was, and where it is known from."""

    why: str
    rows: tuple[FailedRow, ...]
    derived: Derived | None = None


class Deaf:
    """A doorbell that nobody listens to."""

    def ring(self, key: int, tell: object = None) -> None:
        """Tell nobody."""


def failed_sessions() -> dict[str, FailedSession]:
    """Return every file by its name."""
    files = sorted(FOLDER.glob("*.json"))
    return {file.stem: _decoder.decode(file.read_bytes()) for file in files}


async def loaded(home: Path, failed: FailedSession) -> tuple[Derived, list[str]]:
    """Write the rows into a store, close it, and derive from what is read back."""
    session = SessionId(an_id(1))
    async with _opened(home) as house:
        await house.open(id=session)
        await _written(house, session, failed.rows)
    async with _opened(home) as house:
        rows = await house.read(session)
        request = project(rows, turn=max(row.turn for row in rows))
        exports = {
            str(form): await house.exports.export(house.owner, session, form)
            for form in (ExportFormat.JSONL, ExportFormat.MARKDOWN)
        }
    derived = Derived(
        chain=rows[-1].hash,
        request=msgspec.json.decode(msgspec.json.encode(request)),
        exports={form: _digest(made.content, home) for form, made in exports.items()},
    )
    return derived, list(prefix_faults(rows))


def _opened(home: Path) -> Any:
    outside = Environment(
        clock=SettableClock(), randomness=SeededRandomness(), machine=StandInMachine()
    )
    config = load({"home": home, "encryption": "off"}, environment={})
    return open_holdfast(config=config, scope=RunScope.NONE, outside=outside)


async def _written(house: Holdfast, session: SessionId, rows: tuple[FailedRow, ...]) -> None:
    clock = SettableClock()
    stamping = Stamping(clock=clock, id_factory=IdFactory(clock, SeededRandomness(7)))
    journal = Journal(house.store, Deaf(), stamping)  # type: ignore[arg-type]

    for number, row in enumerate(rows, start=1):
        draft = MessageDraft(id=MessageId(an_id(100 + number)), role=row.role, parts=row.parts)
        await journal.write(house.owner, session, partial(_write, row=row, draft=draft))
        clock.advance(seconds=1)


async def _write(writer: SessionWriter, row: FailedRow, draft: MessageDraft) -> None:
    if row.turn > writer.state.turn:
        writer.state = admit_turn(writer.state)
    match row.parts:
        case (ToolResult() as result,):
            await writer.load_call(result.call_id)
            # A result that only a call can have which was run.
            if result.status in {ResultStatus.OK, ResultStatus.UNKNOWN}:
                started = ToolStarted(call_id=result.call_id, name=result.name, arguments={})
                # When the files were derived, the start of a call had a time of its own.
                writer.tick()
                writer.add_event(started, row.turn)
    writer.add_message(draft, row.turn)


def _digest(content: bytes, home: Path) -> str:
    # Where the store lies is not derived from the rows.
    return hashlib.sha256(content.replace(bytes(home), b"home")).hexdigest()


_decoder = msgspec.json.Decoder(FailedSession)


def main() -> None:
    """Derive every file anew."""
    for name, failed in failed_sessions().items():
        with tempfile.TemporaryDirectory() as folder:
            derived, faults = asyncio.run(loaded(Path(folder) / "home", failed))
        encoded = msgspec.json.encode(msgspec.structs.replace(failed, derived=derived))
        (FOLDER / f"{name}.json").write_bytes(msgspec.json.format(encoded, indent=1) + b"\n")
        print(name, *faults)


if __name__ == "__main__":
    main()
