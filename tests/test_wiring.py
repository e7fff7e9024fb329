"""What an installation is equipped with, as its configuration says."""

from pathlib import Path

import pytest

from holdfast import RunScope, keychain, open_holdfast
from holdfast.config import Chat, Config
from holdfast.domain.sessions import Budget, OnExceed
from holdfast.domain.tools import CATALOGUE, FsTier, Grant
from holdfast.execution.system import SystemClock
from holdfast.ports.runtime import Limits
from holdfast.services.secrets import Secrets
from holdfast.wiring import budget_of, build_toolbox, ceiling_of, limits_of
from tests.importers.blocks import a_folder, agent_block


def test_every_tool_of_the_catalogue_is_there_and_no_other(tmp_path: Path) -> None:
    tools = build_toolbox(Config(home=tmp_path), Secrets(keychain, {}), SystemClock())

    assert tools.names == CATALOGUE


def test_nothing_is_allowed_that_the_configuration_does_not_list(tmp_path: Path) -> None:
    config = Config(home=tmp_path)

    assert ceiling_of(config) == Grant()
    assert budget_of(config) is None
    assert limits_of(config) == Limits()


def test_what_the_configuration_lists_is_the_ceiling(tmp_path: Path) -> None:
    chat = Chat(
        fs_scope=FsTier.PROJECT,
        allowed_commands=("git status",),
        allowed_command_globs=("ls **",),
        allowed_domains=("example.com",),
        max_cost_microcents=5,
        on_exceed=OnExceed.FAIL,
        auto_compact=False,
        max_messages=7,
    )
    config = Config(home=tmp_path, chat=chat, max_tool_rounds=3)

    assert ceiling_of(config) == Grant(
        fs=FsTier.PROJECT,
        commands=("git status",),
        command_globs=("ls **",),
        domains=("example.com",),
    )
    budget = Budget(microcents=5, on_exceed=OnExceed.FAIL)
    assert budget_of(config) == budget
    assert limits_of(config) == Limits(
        tool_rounds=3, max_messages=7, compact_threshold=None, budget=budget
    )


@pytest.mark.anyio
async def test_the_configured_folder_is_brought_in_at_the_start(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "old")
    agent_block(folder, "b1", "helper", b"first")
    config = Config(home=tmp_path / "home", block_zones=folder)

    async with open_holdfast(config=config, scope=RunScope.NONE) as house:
        early = await house.zones.read_state(house.owner, "helper")
    async with open_holdfast(config=config) as house:
        brought = await house.zones.read_state(house.owner, "helper")

    assert (early.content, brought.content) == (None, "first")


@pytest.mark.anyio
async def test_a_folder_that_cannot_be_read_keeps_nobody_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(home=tmp_path / "home", block_zones=tmp_path / "missing")

    async with open_holdfast(config=config) as house:
        await house.open()

    assert "block zones were not imported" in caplog.text
