"""What every test of `/api` may ask for."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.app import Environment
from holdfast.config import Acp, Config
from tests.http.api.client import Client, client_of
from tests.new_homes import furnish


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Name the folder that all repositories must lie in."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
async def client(home: Path, root: Path, outside: Environment) -> AsyncIterator[Client]:
    """Visit a house whose turns are played by the offline model."""
    config = Config(home=furnish(home), workspace_root=root, acp=Acp(agent="holdfast"))
    opening = open_holdfast(config=config, outside=outside)
    async with opening as house, client_of(house, root) as somebody:
        yield somebody


@pytest.fixture
async def quiet_client(home: Path, root: Path, outside: Environment) -> AsyncIterator[Client]:
    """Visit a house in which everything is written down and no turn is played."""
    config = Config(home=furnish(home), workspace_root=root, acp=Acp(agent="holdfast"))
    opening = open_holdfast(config=config, outside=outside, scope=RunScope.NONE)
    async with opening as house, client_of(house, root) as somebody:
        yield somebody
