"""What every test of the MCP surface may ask for."""

from collections.abc import AsyncIterator

import pytest

from holdfast import Holdfast
from tests.mcp.clients import Line, line_to


@pytest.fixture
async def line(quiet: Holdfast) -> AsyncIterator[Line]:
    """Talk over lines to a house in which no turn is played."""
    async with line_to(quiet) as client:
        yield client


@pytest.fixture
def client(line: Line) -> Line:
    """Speak the protocol; what is the same on every transport is tested on this one."""
    return line
