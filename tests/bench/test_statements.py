"""What a plain turn asks of the store: counts, which are the same on every machine."""

from pathlib import Path

import pytest

from bench.turns import counted_turn

pytestmark = pytest.mark.anyio


async def test_a_plain_turn_costs_26_statements_and_three_commits_at_most(tmp_path: Path) -> None:
    counts = await counted_turn(tmp_path)

    assert (counts.statements <= 26, counts.commits <= 3) == (True, True), counts.by_name


async def test_what_begins_and_ends_a_transaction_is_counted_too(tmp_path: Path) -> None:
    counts = await counted_turn(tmp_path)

    # One for each message: search notes that it is there.
    assert counts.triggers == 2
    assert counts.by_name["COMMIT"] == counts.by_name["BEGIN IMMEDIATE"] == counts.commits
