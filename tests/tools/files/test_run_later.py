"""In mode `edits` ordinary source is written unasked, and what others run later is asked about."""

from pathlib import Path

import pytest

from holdfast.domain.approvals import RULES, ApprovalMode, ModeRule
from holdfast.domain.tools import FsTier, ToolClass
from holdfast.ports.tools import PlannedCall
from holdfast.process.protected_paths import RunLater, fold_path, run_later
from tests.marks import each_case
from tests.tools.file_fixture import Workshop, result
from tests.tools.files.run_later_paths import ASKING, KINDS, ORDINARY

pytestmark = pytest.mark.anyio

# Some file systems take these for names in the table.
SPELLINGS = [
    "MAKEFILE",
    "Package.JSON",
    "package.json.",
    "package.json::$DATA",
    ".GitHub/Workflows/ci.yml",
    ".VSCODE/x",
    ".vs\u200bcode/tasks.json",
    "conf\u200dtest.py",
    ".mcp.j\u017fon",
    "NODE_MODULES/x.js",
    "DocKerfile",
]


def test_there_are_at_least_as_many_kinds_as_were_found() -> None:
    assert len(set(ASKING)) >= 103
    assert set(KINDS) == set(RunLater)


@each_case(("kind", "path"), [(kind, path) for kind, paths in KINDS.items() for path in paths])
def test_every_path_has_its_class(kind: RunLater, path: str) -> None:
    found = run_later(fold_path(path.split("/")))

    assert found is not None
    # A file may be of two classes; then it is of the first.
    assert list(RunLater).index(found) <= list(RunLater).index(kind)


@each_case("path", ORDINARY)
async def test_ordinary_source_is_an_ordinary_write(tmp_path: Path, path: str) -> None:
    planned = await plan(Workshop(tmp_path), path)

    assert planned.tool_class is ToolClass.WRITE
    assert RULES[ApprovalMode.EDITS, planned.tool_class] is ModeRule.YES


@each_case("path", [*ASKING, *SPELLINGS])
async def test_what_others_run_later_is_asked_about_in_every_mode(
    tmp_path: Path, path: str
) -> None:
    planned = await plan(Workshop(tmp_path, tier=FsTier.PROJECT), path)

    assert (planned.tool_class, planned.memory) == (ToolClass.SENSITIVE_WRITE, None)
    modes = (ApprovalMode.ASK, ApprovalMode.EDITS, ApprovalMode.AUTO)
    assert {RULES[mode, planned.tool_class] for mode in modes} == {ModeRule.ASK}


@pytest.mark.parametrize("mode", [0o755, 0o744, 0o654, 0o645])
async def test_a_file_with_an_executable_bit_is_asked_about(tmp_path: Path, mode: int) -> None:
    shop = Workshop(tmp_path)
    file = shop.put("tool", "one\n")
    file.chmod(mode)

    assert (await plan(shop, "tool")).tool_class is ToolClass.SENSITIVE_WRITE
    edited = await shop.plan("edit_file", path="tool", old="one", new="two")
    assert isinstance(edited, PlannedCall)
    assert edited.tool_class is ToolClass.SENSITIVE_WRITE


async def test_a_file_that_became_executable_is_asked_about_again(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    file = shop.put("tool", "one\n")
    planned = await plan(shop, "tool")

    file.chmod(0o755)
    done = await shop.toolbox.run(shop.place, planned)

    assert done.error is not None
    assert done.error.code == "target_changed"
    assert file.read_text() == "one\n"


async def test_a_write_never_makes_a_file_executable(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)

    result(await shop.call("write_file", path="new", content="#!/bin/sh\n"))

    assert not (shop.inside / "new").stat().st_mode & 0o111


async def plan(shop: Workshop, path: str) -> PlannedCall:
    """Return the plan of a write."""
    planned = await shop.plan("write_file", path=path, content="x\n", create_dirs=True)
    assert isinstance(planned, PlannedCall), planned
    return planned
