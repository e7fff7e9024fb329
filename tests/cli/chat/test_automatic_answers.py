"""Answering for nobody: the questions of our own turns, and how those of others are answered."""

import asyncio
from pathlib import Path

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.cli.approval_policy import AttendancePolicy
from holdfast.cli.chat.approvals import AutomaticApprovals, allow_by_flag
from holdfast.cli.chat.screen import TextScreen
from holdfast.cli.options import GlobalOptions
from holdfast.cli.output import Printer
from holdfast.domain.approvals import Approval
from tests.cli.commands.test_approvals import ask

NOBODY = AttendancePolicy(is_attended=False)


@pytest.fixture
def asked(home: Path, tmp_path: Path) -> Approval:
    """Leave a question waiting."""
    return ask(home, tmp_path / "desk")


def answered(
    home: Path, asked: Approval, manner: AttendancePolicy, *, own: bool, times: int = 1
) -> Approval:
    """Show a question to somebody who answers for nobody, and return what became of it."""

    async def work() -> Approval:
        async with open_holdfast(home, scope=RunScope.NONE) as house:
            answering = AutomaticApprovals(
                house, TextScreen(Printer(GlobalOptions()), house, manner), manner
            )
            async with asyncio.TaskGroup() as tasks:
                for each in await answering.list_pending(asked.session_id) * times:
                    answering.begin(tasks, each, own=own)
            return await house.approvals.get(house.owner, asked.session_id, asked.id)

    return asyncio.run(work())


def test_nobody_says_no_to_our_own_turn(
    home: Path, asked: Approval, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answered(home, asked, NOBODY, own=True)

    assert (found.state, found.answered_by) == ("denied", "flag")
    assert capsys.readouterr().err == (
        "No user is present to approve this. Allow it with --yes-to write_file.\n"
    )


def test_a_flag_says_yes_to_our_own_turn(home: Path, asked: Approval) -> None:
    manner = AttendancePolicy(is_attended=False, yes_to=frozenset({"write_file"}))

    found = answered(home, asked, manner, own=True)

    assert (found.state, found.answered_by) == ("allowed", "flag")


@pytest.mark.parametrize(
    ("manner", "own"),
    [
        (NOBODY, False),
        (AttendancePolicy(yes_to=frozenset({"write_file"})), False),
        (AttendancePolicy(), True),
    ],
)
def test_what_is_anothers_or_somebody_may_come_for_is_told_once_and_left(
    home: Path,
    asked: Approval,
    manner: AttendancePolicy,
    own: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = answered(home, asked, manner, own=own, times=2)

    assert found.state == "waiting"
    assert capsys.readouterr().err == (
        f"Answer it with `holdfast approvals answer {asked.id} --allow` or --deny.\n"
    )


def test_whoever_was_faster_has_answered(home: Path, asked: Approval) -> None:
    answered(home, asked, NOBODY, own=True)

    async def late() -> Approval:
        async with open_holdfast(home, scope=RunScope.NONE) as house:
            await allow_by_flag(house, asked)
            return await house.approvals.get(house.owner, asked.session_id, asked.id)

    assert asyncio.run(late()).state == "denied"
