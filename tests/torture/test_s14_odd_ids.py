"""S14: an id that is none finds nothing: it is refused, and becomes no path and no SQL."""

import asyncio
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import apsw
import pytest

from holdfast.domain.errors import Code
from holdfast.mcp.server import TOOLS
from tests.marks import proves
from tests.mcp.clients import line_to
from tests.torture.conftest import Sized, Tell
from tests.torture.doors import NOWHERE, Doors, doors, path_of
from tests.torture.odd_ids import MARK, odd_id
from tests.torture.watching import Watch, effects_watched, statements_watched

pytestmark = pytest.mark.slow

# Arguments of tools that name something that has to be there.
NAMES = ("session_id", "call_id", "entity_id", "agent", "repo_id", "tool", "name", "cursor")
# With these, whatever is not there is nothing, and no error.
FILTERS = {"entity_id", "agent", "repo_id", "tool"}
ALSO_FILTERS = {("query_entities", "session_id")}
FILLING = {
    "session_id": "abc123",
    "call_id": "c1",
    "entity_id": "FU-061",
    "name": "spec_complete",
    "how": "skip",
    "field": "duration",
    "value": 60,
    "query": "x",
    "entity_type": "feature_unit",
}


@proves("S14")
def test_an_odd_id_is_refused_and_goes_nowhere(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    count = sized(quick=300, test=2_000, torture=23_379)
    watch = Watch()

    async def tried() -> tuple[Counter[str], list[str]]:
        async with doors(tmp_path / "home") as house:
            over_http = await http_faults(house, luck, count // 2)
            over_mcp = await mcp_faults(house, luck, count // 2)
        return over_http[0] + over_mcp[0], over_http[1] + over_mcp[1]

    with statements_watched(watch), effects_watched() as effects:
        fields, faults = asyncio.run(tried())

    tell(f"{sum(fields.values())} ids in {len(fields)} fields, {len(watch.statements)} statements")
    assert faults == []
    assert [each for each in watch.statements if MARK in each] == []
    assert [each for each in effects.paths if MARK in each] == []
    assert len(watch.statements) > min(1_000, count // 2)


async def http_faults(
    house: Doors, luck: random.Random, count: int
) -> tuple[Counter[str], list[str]]:
    """Ask for routes with an odd id in one of their places; return what was not refused."""
    fields: Counter[str] = Counter()
    faults: list[str] = []
    places = [(route, name) for route in house.routes for name in placeholders(route.path)]
    for _ in range(count):
        route, name = luck.choice(places)
        odd = odd_id(luck)
        while re.fullmatch(r"[A-Za-z0-9_-]+", odd):
            # That is a name of a desk, and whoever asks for a desk has one.
            odd = odd_id(luck)
        at = {**NOWHERE, name: quote(odd, safe="")}
        body = (("content-type", "application/json"),) if route.changes else ()
        answer = await house.knock(route, house.bearer, *body, at=at)
        fields[f"{route.name} {name}"] += 1
        if answer.status not in {400, 404, 409, 416}:
            faults.append(f"{route.method} {path_of(route, at)[:200]}: {answer.status}")
    return fields, faults


async def mcp_faults(
    house: Doors, luck: random.Random, count: int
) -> tuple[Counter[str], list[str]]:
    """Call tools with an odd id in one of their arguments; return what was not refused."""
    fields: Counter[str] = Counter()
    faults: list[str] = []
    places = list(arguments())
    async with line_to(house.visitor.house) as line:
        for _ in range(count):
            tool, name = luck.choice(places)
            needed = {each.name for each in TOOLS[tool].takes if each.is_required}
            given = {each: FILLING[each] for each in needed} | {name: odd_id(luck)}
            told = await line.tool(tool, **given)
            fields[f"{tool} {name}"] += 1
            is_named = told.is_error and told.form["error"] != Code.INTERNAL
            is_filter = name in FILTERS or (tool, name) in ALSO_FILTERS
            is_nothing = is_filter and not told.is_error and is_empty(told.form)
            if not (is_named or is_nothing):
                faults.append(f"{tool} {name}={given[name]!r}: {told.form}"[:300])
        for _ in range(count // 20):
            uri = f"holdfast://{luck.choice(('sessions', 'history', ''))}/{odd_id(luck)}"
            frame = await line.call("resources/read", uri=uri)
            fields["resources uri"] += 1
            if frame.get("error", {}).get("code") not in {-32002, -32602}:
                faults.append(f"{uri!r}: {frame}"[:300])
    return fields, faults


def arguments() -> Iterator[tuple[str, str]]:
    """Yield every argument of every tool that names something; what is submitted names itself."""
    for tool in TOOLS.values():
        for each in tool.takes:
            if each.name in NAMES and not tool.is_open:
                yield tool.name, each.name


def is_empty(form: dict[str, object]) -> bool:
    """Tell whether an answer has nothing in it."""
    return all(not value for value in form.values())


def placeholders(path: str) -> list[str]:
    """Return the names of a path's placeholders."""
    return re.findall(r"{(\w+)}", path)


@proves("S14")
def test_an_id_that_became_sql_or_a_path_would_be_seen(tmp_path: Path) -> None:
    watch = Watch()
    with statements_watched(watch), effects_watched() as effects:
        connection = apsw.Connection(":memory:")
        connection.execute(f"SELECT '{MARK}'").fetchall()
        connection.execute("SELECT ?", (MARK,)).fetchall()
        connection.close()
        with pytest.raises(FileNotFoundError):
            (tmp_path / MARK / "x").read_text()

    assert [MARK in each for each in watch.statements] == [True, False]
    assert any(MARK in each for each in effects.paths)
