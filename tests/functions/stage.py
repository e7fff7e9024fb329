"""One turn of a scripted model that calls functions of the test."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast import Environment, LocalHoldfast, Session, SessionRequest, ToolResult, open_holdfast
from holdfast.config import Config
from holdfast.domain.approvals import ApprovalMode
from tests.houses import played
from tests.tooled import a_config, asks, call, says

Function = Callable[..., Any]


def scripted(home: Path, *calls: dict[str, Any], **changes: Any) -> Config:
    """Return the settings of a home whose model makes the calls in one step, and is done."""
    return a_config(home, asks(*calls), says("done"), **{"approval": ApprovalMode.AUTO, **changes})


@asynccontextmanager
async def sent(
    config: Config,
    *tools: Function,
    outside: Environment | None = None,
    **request: Any,
) -> AsyncIterator[tuple[LocalHoldfast, Session]]:
    """Open a home and a session with the functions, and send it on its way."""
    async with open_holdfast(config=config, outside=outside) as hf:
        session = await hf.open(request=SessionRequest(**request), tools=tools)
        await hf.send(session.id, "go")
        yield hf, session


async def results(hf: LocalHoldfast, session: Session) -> list[ToolResult]:
    """Return the results of the calls once the turn has ended."""
    rows = await played(hf, session.id)
    return [part for row in rows for part in row.parts if isinstance(part, ToolResult)]


async def result_of(home: Path, function: Function, **arguments: Any) -> ToolResult:
    """Return the result of one call."""
    name = getattr(function, "name", None) or function.__name__
    async with sent(scripted(home, call(name, **arguments)), function) as (hf, session):
        (found,) = await results(hf, session)
    return found
