"""A commit is made only after somebody has agreed to exactly this commit, in every mode."""

from pathlib import Path

import pytest

from holdfast import Holdfast, Session, open_holdfast
from holdfast.app import Environment
from holdfast.config import Config
from holdfast.domain.approvals import ApprovalMode, ApprovalState
from holdfast.domain.errors import Code, Conflict
from tests.houses import played
from tests.marks import demands
from tests.tooled import (
    FOR_ALL,
    a_config,
    answer,
    asks,
    call,
    outcomes,
    question,
    says,
    started,
)
from tests.tools.process_fixture import Workbench

# Programs are started here, which belongs to the whole run and not to the quick one.
pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    """Make a repository with one commit and one change that is not committed."""
    bench = Workbench(tmp_path)
    bench.repository()
    (bench.work / "a.txt").write_text("two\n")
    monkeypatch.setenv("HOME", str(bench.user))
    return bench


@pytest.fixture
def config(home: Path) -> Config:
    step = asks(call("git_commit", message="second", paths=["a.txt"]))
    return a_config(home, step, says("done"), approval=ApprovalMode.AUTO)


def subjects(bench: Workbench) -> list[str]:
    return bench.git("log", "--format=%s").split()


async def at_work(house: Holdfast, bench: Workbench, mode: ApprovalMode) -> Session:
    return await started(house, bench.work, approval=mode)


@demands("S0-213")
@pytest.mark.parametrize("mode", [ApprovalMode.ASK, ApprovalMode.EDITS, ApprovalMode.AUTO])
async def test_a_commit_asks_in_every_mode_and_is_made_once_allowed(
    bench: Workbench, config: Config, mode: ApprovalMode
) -> None:
    async with open_holdfast(config=config) as house:
        session = await at_work(house, bench, mode)
        asked = await question(house, session)
        before = subjects(bench)
        with pytest.raises(Conflict) as caught:
            await answer(house, asked, scope=FOR_ALL)
        await answer(house, asked)
        rows = await played(house, session.id)

    assert caught.value.code is Code.OPTION_NOT_OFFERED
    assert (before, subjects(bench)) == (["first"], ["second", "first"])
    assert outcomes(rows) == ["git_commit ok"]


@demands("S0-213")
@pytest.mark.parametrize("yes_to", [frozenset(), frozenset({"git_commit"})])
async def test_where_nobody_can_be_asked_no_commit_is_made(
    bench: Workbench, config: Config, yes_to: frozenset[str]
) -> None:
    unattended = Environment(is_attended=False, yes_to=yes_to)
    async with open_holdfast(config=config, outside=unattended) as house:
        session = await at_work(house, bench, ApprovalMode.AUTO)
        rows = await played(house, session.id)

    assert outcomes(rows) == ["git_commit denied/rejected"]
    assert subjects(bench) == ["first"]


async def test_a_commit_that_was_not_allowed_is_not_made(bench: Workbench, config: Config) -> None:
    async with open_holdfast(config=config) as house:
        session = await at_work(house, bench, ApprovalMode.AUTO)
        await answer(house, await question(house, session), ApprovalState.DENIED)
        rows = await played(house, session.id)

    assert outcomes(rows) == ["git_commit denied/rejected"]
    assert subjects(bench) == ["first"]


@demands("S0-213")
async def test_a_commit_that_became_another_one_is_not_made(
    bench: Workbench, config: Config
) -> None:
    async with open_holdfast(config=config) as house:
        session = await at_work(house, bench, ApprovalMode.AUTO)
        asked = await question(house, session)
        (bench.work / "a.txt").write_text("three\n")
        await answer(house, asked)
        rows = await played(house, session.id)

    assert outcomes(rows) == ["git_commit denied/target_changed"]
    assert subjects(bench) == ["first"]


async def test_a_plain_git_would_have_committed(bench: Workbench) -> None:
    bench.git("commit", "--all", "--quiet", "--message=second")

    assert subjects(bench) == ["second", "first"]
