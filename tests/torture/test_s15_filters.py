"""S15: whatever stands in a filter, a query or an order, only statements that we wrote are run."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw
import pytest
from msgspec.structs import fields as fields_of

from holdfast.domain.errors import Code
from holdfast.mcp.server import TOOLS
from tests.marks import proves
from tests.mcp.clients import line_to
from tests.mcp.payloads import COMPLETE, UNIT
from tests.torture.conftest import Sized, Tell
from tests.torture.doors import NOWHERE, Doors, doors
from tests.torture.odd_ids import MARK, odd_id
from tests.torture.test_s14_odd_ids import FILLING
from tests.torture.watching import Watch, statements_watched

pytestmark = pytest.mark.slow

# What a request has no business to do.
FORBIDDEN = ("ATTACH", "DETACH", "CREATE", "DROP", "ALTER", "VACUUM", "REINDEX", "PRAGMA writable")
# What was tried on other stores: keys, operators and values that end up in a statement there.
KEYS = (
    *("status'", 'status"', "status)", "status') OR 1=1 --", "a' OR '1'='1", "$.status", "$[0]"),
    *("status->>'x'", "json_extract(x)", "a.b') UNION SELECT body FROM observations --", "*", ""),
    *("a.__class__", "a..b", ".", "a\x00b", "a;DROP TABLE sessions", "1=1", "owner", "owner.id"),
)
OPERATORS = ("$ne", "$gt", "$where", "$regex", "contains'", "gte; --", "like", "||", "IN")


@proves("S15")
def test_only_statements_that_we_wrote_are_run(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    count = sized(quick=300, test=1_500, torture=10_000)
    watch = Watch()

    async def tried() -> tuple[Counter[str], list[str], int]:
        async with doors(tmp_path / "home") as house:
            owner = house.visitor.house.owner
            await house.visitor.house.observations.submit(owner, COMPLETE)
            await house.visitor.house.observations.submit_entity(owner, "feature_unit", UNIT)
            before = len(watch.statements)
            over_http = await http_faults(house, luck, count // 2)
            over_mcp = await mcp_faults(house, luck, count // 2)
        return over_http[0] + over_mcp[0], over_http[1] + over_mcp[1], before

    with statements_watched(watch):
        fields, faults, before = asyncio.run(tried())

    run = watch.statements[before:]
    tell(f"{sum(fields.values())} tries on {len(fields)} parameters, {len(run)} statements")
    assert faults == []
    assert [each for each in run if MARK in each] == []
    assert [each for each in run if is_forbidden(each)] == []
    assert len(run) > min(500, count // 3)


def is_forbidden(statement: str) -> bool:
    """Tell whether a statement changes what there is, and not what is in it."""
    return statement.lstrip().upper().startswith(tuple(each.upper() for each in FORBIDDEN))


async def http_faults(
    house: Doors, luck: random.Random, count: int
) -> tuple[Counter[str], list[str]]:
    """Ask with odd parameters; return what was neither refused nor an answer."""
    tried: Counter[str] = Counter()
    faults: list[str] = []
    places = [
        (route, each.encode_name)
        for route in house.routes
        if route.method == "GET" and not route.is_stream
        for each in fields_of(route.query)
    ]
    for _ in range(count):
        route, name = luck.choice(places)
        value = json.dumps(a_filter(luck)) if name == "filters" else odd(luck)
        more = "&entity_type=feature_unit" if name == "filters" else ""
        query = f"?{name}={quote(value, safe='')}{more}"
        answer = await house.knock(route, house.bearer, at=NOWHERE, query=query)
        tried[f"{route.name} {name}"] += 1
        if answer.status >= 500 or (answer.status == 200 and is_found(name, answer.document)):
            faults.append(f"{route.name} {query[:200]}: {answer.status} {answer.body[:100]!r}")
    return tried, faults


def is_found(name: str, document: Any) -> bool:
    """Tell whether an odd filter found something: it stands for nothing that is there."""
    return name == "filters" and bool(document.get("data") or document.get("entities"))


async def mcp_faults(
    house: Doors, luck: random.Random, count: int
) -> tuple[Counter[str], list[str]]:
    """Call reading tools with odd arguments; return what was neither refused nor an answer."""
    tried: Counter[str] = Counter()
    faults: list[str] = []
    places = list(arguments())
    async with line_to(house.visitor.house) as line:
        for _ in range(count):
            tool, name = luck.choice(places)
            needed = {each.name for each in TOOLS[tool].takes if each.is_required}
            value = a_filter(luck) if name == "filters" else odd(luck)
            told = await line.tool(
                tool, **({each: FILLING[each] for each in needed} | {name: value})
            )
            tried[f"{tool} {name}"] += 1
            is_broken = told.is_error and told.form["error"] == Code.INTERNAL
            if is_broken or (name == "filters" and not told.is_error and told.form["entities"]):
                faults.append(f"{tool} {name}={value!r}: {told.form}"[:300])
    return tried, faults


def arguments() -> Iterator[tuple[str, str]]:
    """Yield every argument of every tool that reads."""
    for tool in TOOLS.values():
        if tool.is_read_only:
            yield from ((tool.name, each.name) for each in tool.takes)
    # Where a statement is nearest to being built.
    yield from [("query_entities", "filters")] * 20


def odd(luck: random.Random) -> str:
    """Return a value that is more than one in some language."""
    return luck.choice((odd_id(luck), f"{MARK}{luck.choice(KEYS)}", f"{luck.choice(KEYS)}{MARK}"))


def a_filter(luck: random.Random) -> dict[str, Any]:
    """Return a filter whose key, operator or value is odd."""
    key = luck.choice((f"{luck.choice(KEYS)}{MARK}", "status", f"{MARK}.{luck.choice(KEYS)}"))
    plain: tuple[Any, ...] = (odd(luck), MARK, None, [MARK], 1)
    ranged = {luck.choice((*OPERATORS, "contains")): odd(luck)}
    value = luck.choice((*plain, ranged, ranged))
    return {key: value}


@proves("S15")
def test_a_statement_that_was_built_would_be_seen() -> None:
    watch = Watch()
    with statements_watched(watch):
        connection = apsw.Connection(":memory:")
        connection.execute(f"SELECT 1 WHERE '{MARK}' = ''").fetchall()
        connection.execute("CREATE TABLE x (y)")
        connection.close()

    assert [MARK in each for each in watch.statements] == [True, False]
    assert [is_forbidden(each) for each in watch.statements] == [False, True]
