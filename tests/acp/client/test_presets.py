"""Presets: each makes a valid agent, none is known to any code by its name, the page shows all."""

import ast
import re
from pathlib import Path

import pytest

import holdfast.acp
from holdfast.acp.client.presets import DEFAULT_PRESET, PRESETS, preset_fields
from holdfast.api import Holdfast
from holdfast.domain.agent_processes import parse_program_options
from holdfast.domain.ids import Owner
from tests.marks import each_case

STRANGER = Owner("stranger")
SOURCES = sorted(Path(holdfast.acp.__file__).parent.rglob("*.py"))
PAGE = Path(__file__).resolve().parents[3] / "docs" / "acp.md"
_ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| `(.+?)` \|", re.MULTILINE)


@pytest.mark.anyio
@each_case("name", sorted(PRESETS))
async def test_a_preset_makes_an_agent_whose_options_are_all_known(
    quiet: Holdfast, name: str
) -> None:
    preset = PRESETS[name]

    made = await quiet.agents.create(quiet.owner, preset_fields(name, is_root=True))

    options = parse_program_options(made.runtime)  # type: ignore[arg-type]
    assert (made.slug, made.name, made.grant) == (name, preset.title, None)
    assert (options.preset, options.install) == (name, preset.install)
    assert (options.mode, options.fs, options.fs_missing) == (
        preset.mode,
        preset.fs,
        preset.fs_missing,
    )
    assert options.environment == preset.environment | preset.as_root
    assert options.with_servers == preset.with_servers


def test_what_a_preset_needs_now_and_then_is_left_out_else() -> None:
    plain = {name: preset_fields(name)["runtime"].options for name in PRESETS}

    assert "environment" not in plain["claude"]
    assert "environment" not in plain["gemini"]
    assert {name for name, options in plain.items() if "mode" in options} == {
        "codex",
        "goose",
        "vibe",
    }


def test_no_code_asks_for_a_program_by_name() -> None:
    words = {*PRESETS, *(preset.command for preset in PRESETS.values())} - {"python3"}
    asked = [
        f"{path.name}: {node.value}"
        for path in SOURCES
        if path.name != "presets.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in words
    ]

    assert asked == []


def test_the_page_shows_every_preset_as_it_is() -> None:
    shown = {name: (title, command) for name, title, command in _ROW.findall(PAGE.read_text())}

    assert shown == {
        name: (preset.title, " ".join([preset.command, *preset.args]))
        for name, preset in PRESETS.items()
    }


@pytest.mark.anyio
async def test_the_seeded_agent_is_made_at_its_first_use_for_each_owner(quiet: Holdfast) -> None:
    mine = await quiet.agents.get(quiet.owner, DEFAULT_PRESET)
    theirs = await quiet.agents.get(STRANGER, DEFAULT_PRESET)
    await quiet.agents.update(quiet.owner, DEFAULT_PRESET, {"name": "Mine"})
    again = await quiet.agents.get(quiet.owner, DEFAULT_PRESET)

    assert (mine.slug, theirs.slug) == (DEFAULT_PRESET, DEFAULT_PRESET)
    assert mine.id != theirs.id
    assert (again.id, again.name) == (mine.id, "Mine")
