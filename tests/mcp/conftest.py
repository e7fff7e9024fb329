"""What every test of the MCP surface may ask for."""

from collections.abc import AsyncIterator

import pytest

from holdfast import Holdfast
from tests.http.v1.client import visiting
from tests.mcp.clients import Client, Line, Poster, line_to


@pytest.fixture
async def line(quiet: Holdfast) -> AsyncIterator[Line]:
    """Talk to a house over lines."""
    async with line_to(quiet) as client:
        yield client


@pytest.fixture(params=["line", "http"])
async def client(request: pytest.FixtureRequest, quiet: Holdfast) -> AsyncIterator[Client]:
    """Talk to a house in which no turn is played, over each transport."""
    if request.param == "line":
        async with line_to(quiet) as over_lines:
            yield over_lines
    else:
        async with visiting(quiet) as visitor:
            yield Poster(visitor)
