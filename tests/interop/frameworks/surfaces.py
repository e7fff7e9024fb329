"""What every surface shows of the sessions that a framework has left: `HOME`; prints JSON.

Nothing here knows a framework: the surfaces work on the messages that its records became.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from holdfast import Holdfast, Role, Session, SessionQuery, Text, connect
from holdfast.domain.costs import CostQuery
from holdfast.search.query import SearchQuery
from holdfast.workflows.session_export import ExportFormat

HOME = sys.argv[1]
HOLDFAST: Final = str(Path(sys.executable).with_name("holdfast"))
Check = Callable[[Holdfast, Session], Awaitable[bool]]


async def _asked(hf: Holdfast, session: Session) -> str:
    rows = await hf.read(session.id)
    return next(row.text for row in rows if row.role is Role.USER and row.text)


async def shows_messages(hf: Holdfast, session: Session) -> bool:
    """The rows of the session, over HTTP as the page reads them."""
    rows = await hf.read(session.id)
    return {Role.USER, Role.TOOL_CALL} <= {row.role for row in rows}


async def shows_in_terminal(hf: Holdfast, session: Session) -> bool:
    """The terminal's view of the session."""
    return await _asked(hf, session) in _said("sessions", "messages", session.id)


async def lists_calls(hf: Holdfast, session: Session) -> bool:
    """The tool calls of the session."""
    return bool((await hf.calls.list(hf.owner, session.id)).items)


async def finds(hf: Holdfast, session: Session) -> bool:
    """A word of the question."""
    (word, *_) = re.findall(r"\w{3,}", await _asked(hf, session))
    hits = await hf.search.find(hf.owner, SearchQuery(text=word))
    return session.id in {hit.session_id for hit in hits.items}


async def shows_a_timeline(hf: Holdfast, session: Session) -> bool:
    """The events of the session."""
    return bool((await hf.events.list(hf.owner, session.id)).items)


async def exports_lines(hf: Holdfast, session: Session) -> bool:
    """The export as lines of JSON."""
    return await _exported(hf, session, ExportFormat.JSONL)


async def exports_text(hf: Holdfast, session: Session) -> bool:
    """The export as Markdown."""
    return await _exported(hf, session, ExportFormat.MARKDOWN)


async def exports_a_workflow(hf: Holdfast, session: Session) -> bool:
    """The export as a workflow."""
    content = (await hf.exports.export(hf.owner, session.id, ExportFormat.WORKFLOW)).content
    return b"workflow:" in content


async def _exported(hf: Holdfast, session: Session, form: ExportFormat) -> bool:
    content = (await hf.exports.export(hf.owner, session.id, form)).content
    return (await _asked(hf, session)).encode() in content


async def verifies(hf: Holdfast, session: Session) -> bool:
    """The chain of hashes."""
    return (await hf.sessions.verify(hf.owner, session.id)).faults == ()


async def reports_costs(hf: Holdfast, session: Session) -> bool:
    """The costs, which are those of the session's own requests."""
    report = await hf.costs.report(CostQuery(owner=hf.owner, session_id=session.id))
    return report.total.usage == session.usage


async def forks(hf: Holdfast, session: Session) -> bool:
    """A fork at the first message goes on with an agent of Holdfast."""
    fork = await hf.sessions.fork(hf.owner, session.id, at=1, agent="holdfast")
    answer = await hf.ask("What is 6*7?", session=fork.id)
    return "42" in answer.text


async def refuses_messages(hf: Holdfast, session: Session) -> bool:
    """A message from a surface, which no process would answer."""
    try:
        await hf.send(session.id, (Text(text="Hello"),))
    except Exception as error:  # noqa: BLE001 — its code is compared
        return str(getattr(error, "code", "")) == "external_runtime"
    return False


SURFACES: Final[tuple[Check, ...]] = (
    shows_messages,
    shows_in_terminal,
    lists_calls,
    finds,
    shows_a_timeline,
    exports_lines,
    exports_text,
    exports_a_workflow,
    verifies,
    reports_costs,
    forks,
    refuses_messages,
)


def _said(*arguments: str) -> str:
    run = subprocess.run(
        [HOLDFAST, *arguments], env=_environment(), capture_output=True, text=True, check=True
    )
    return run.stdout


def _environment() -> dict[str, str]:
    return os.environ | {"HOLDFAST_HOME": HOME}


async def main() -> None:
    """Serve the home and try each surface on each session of a framework."""
    secret = _said("token", "create", "surfaces", "--scope", "admin", "--json")
    command = [HOLDFAST, "serve", "--port", "0"]
    server = await asyncio.create_subprocess_exec(
        *command, env=_environment(), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        url = (await server.stdout.readline()).decode().split()[-1]
        async with connect(url, json.loads(secret)["secret"]) as hf:
            listed = (await hf.sessions.list(SessionQuery(owner=hf.owner))).items
            found = [each for each in listed if "integration" in each.metadata]
            failed = [
                check.__name__ for each in found for check in SURFACES if not await check(hf, each)
            ]
        print(json.dumps({"sessions": len(found), "surfaces": len(SURFACES), "failed": failed}))
    finally:
        server.terminate()
        await server.wait()


if __name__ == "__main__":
    asyncio.run(main())
