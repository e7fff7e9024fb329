"""S16: thousands of spellings of paths that lead out, brought to every file tool."""

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from holdfast.domain.tools import FsTier
from holdfast.ports.tools import CallOutcome
from tests.marks import proves
from tests.tools.file_fixture import CANARY
from tests.torture.arenas import CALLS, Arena, quick_folder, run_without_threads
from tests.torture.conftest import Sized, Tell
from tests.torture.spellings import CORPORA, spellings

pytestmark = pytest.mark.slow

CODES = {
    *("ok", "outside_scope", "protected_path", "not_found", "not_a_file", "invalid_arguments"),
    *("no_match", "ambiguous_match", "binary", "failed", "not run"),
}


@proves("S16")
@pytest.mark.parametrize("tier", list(FsTier))
def test_no_spelling_of_a_path_leads_out(
    tmp_path: Path, tier: FsTier, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    most = sized(quick=100, test=2_000, torture=23_379)
    # The narrowest tier gets them all; the wider ones walk by the same code.
    is_whole = tier is FsTier.SANDBOXED or sized(test=0, torture=0, release=1)
    count = most if is_whole else most // 10

    with quick_folder(tmp_path) as folder:
        arena = Arena(folder, tier=tier)
        arena.furnish()
        paths = spellings(arena.words, count, luck)
        escapes, outcomes = run_without_threads(brought_to_every_tool(arena, paths))

    tell(
        f"{tier}: {len(paths)} paths × {len(CALLS)} tools, {len(escapes)} escapes,"
        f" {outcomes['ok']} inside, lists brought along: {CORPORA or 'none'}"
    )
    assert escapes == []
    assert len(paths) >= count
    assert set(outcomes) <= CODES
    assert min(outcomes["ok"], outcomes["outside_scope" if tier != "full" else "ok"]) > 0


@proves("S16")
def test_the_spellings_find_tools_that_compare_strings(tmp_path: Path, luck: random.Random) -> None:
    arena = Arena(tmp_path, tier=FsTier.SANDBOXED)
    arena.furnish()
    inside = str(arena.inside)

    found = []
    for path in spellings(arena.words, 500, luck):
        whole = os.path.normpath(os.path.join(inside, path.replace("\0", "")))
        if whole.startswith(inside) and os.path.isfile(whole):
            found.append(CANARY in Path(whole).read_text())

    assert any(found)


async def brought_to_every_tool(
    arena: Arena, paths: list[str]
) -> tuple[list[tuple[str, str]], Counter[str]]:
    """Return the calls that escaped, and how often calls came out which way."""
    escapes, outcomes = [], Counter[str]()
    for path in paths:
        for tool in CALLS:
            done = await arena.attempt(tool, path)
            outcomes[outcome(done)] += 1
            if done and arena.escaped(done, changed=tool in ("write_file", "edit_file")):
                escapes.append((tool, path))
    return escapes, outcomes


def outcome(done: CallOutcome | None) -> str:
    """Return one word for how a call came out."""
    if done is None:
        return "not run"
    return "ok" if done.error is None else str(done.error.code)
