"""What a turn asks of the store and the interpreter: counts, the same on every machine."""

from pathlib import Path

import pytest

from bench.turn_costs import counted_calls, counted_turn
from bench.turns import TOOL_TURN

pytestmark = pytest.mark.anyio


async def test_a_plain_turn_costs_26_statements_and_three_commits_at_most(tmp_path: Path) -> None:
    counts = await counted_turn(tmp_path)

    assert (counts.statements <= 26, counts.commits <= 3) == (True, True), counts.by_name


async def test_what_begins_and_ends_a_transaction_is_counted_too(tmp_path: Path) -> None:
    counts = await counted_turn(tmp_path)

    # One for each message: search notes that it is there.
    assert counts.triggers == 2
    assert counts.by_name["COMMIT"] == counts.by_name["BEGIN IMMEDIATE"] == counts.commits


async def test_calls_of_a_turn_with_a_tool_are_counted_on_all_threads(tmp_path: Path) -> None:
    python, c, frames = await counted_calls(tmp_path)

    assert (python > 100, c > 100, frames >= 4) == (True, True, True), (python, c, frames)


async def test_a_turn_with_a_tool_costs_five_commits_at_most(tmp_path: Path) -> None:
    counts = await counted_turn(tmp_path, TOOL_TURN)

    assert counts.commits <= 5, counts.by_name
