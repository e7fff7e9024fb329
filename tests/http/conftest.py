"""What every test of the HTTP surface may ask for."""

from collections.abc import AsyncIterator

import pytest

from holdfast import Holdfast
from tests.http.v1.client import Visitor, visiting


@pytest.fixture
async def visitor(holdfast: Holdfast) -> AsyncIterator[Visitor]:
    """Visit a house whose turns are played by the offline model."""
    async with visiting(holdfast) as somebody:
        yield somebody


@pytest.fixture
async def quiet_visitor(quiet: Holdfast) -> AsyncIterator[Visitor]:
    """Visit a house in which everything is written down and no turn is played."""
    async with visiting(quiet) as somebody:
        yield somebody
