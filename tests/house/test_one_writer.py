"""Holds that there is one pen, one bell, one grouping of rows, and one place for SQL."""

import ast
import re
from collections.abc import Iterator
from datetime import UTC, datetime

from holdfast.domain.ids import AgentId, Owner, RepoId, SessionId
from holdfast.domain.queries import SessionQuery
from holdfast.store.sessions import count_sql, page_sql
from tests.house.source import Module, last_name, module, modules, nodes

JOURNAL = "services/journal.py"
GROUPING = "domain/turns.py"

# What only the pen may do, as table and verb.
WRITING = {
    ("tx", "append"),
    ("sessions", "add"),
    ("sessions", "remove"),
}

STATEMENT = re.compile(
    r"\A\s*(?:--[^\n]*\n\s*)?(?:SELECT\b|INSERT INTO\b|UPDATE\b|DELETE FROM\b|WITH RECURSIVE\b"
    r"|CREATE (?:TABLE|INDEX|VIEW|TRIGGER)\b|DROP\b|ALTER TABLE\b|PRAGMA\b|BEGIN\b|SAVEPOINT\b)"
)
FRAGMENT = re.compile(
    r"\b(?:SELECT|FROM|WHERE|AND|IN|EXISTS|ORDER BY|LIMIT|VALUES|SET)\b|[<=] ?\(?:"
)
# The names that may stand in the text of a statement. Each is a constant of its file, comes from
# a table of columns, or is made of bound parameters' names; no value of a caller is among them.
WOVEN = {
    # A table of another program's, by the name that its own schema gives it, and quoted.
    "store/sqlite/block_files.py": {"table"},
    # The names of our own tables and columns, and what is bound to them by number.
    "store/transfer/run.py": {"EVERY", "mode", "names", "order", "placeholders", "table"},
    "observations/listing_tables.py": {"SELECTED"},
    "store/commit.py": {"changes", "key"},
    "store/postgres/commit.py": {"_SET", "names", "values"},
    "store/sqlite/commit.py": {
        "_EXPECTED",
        "_SET",
        "_SET_WITHIN",
        "_KEY",
        *(f"_KEY + {number}" for number in range(1, 7)),
        *(f"_NUMBER['{name}']" for name in ("epoch", "holder", "until")),
        "conflict",
        "', '.join(names)",
        "places",
        "table",
    },
    "store/sqlite/checks.py": {"SELECTED"},
    "observations/rows.py": {"NEWEST", "SELECTED", "WITH_NEWEST", "_KNOWN"},
    "store/client_requests.py": {"', :'.join(named)", "column"},
    "store/sessions.py": {
        "_HEAD",
        "_SESSION",
        "_STATUS",
        "column",
        "joined",
        "names",
        "tags",
        "wanted",
        "' AND '.join(conditions)",
    },
}


# Modules of features that hold SQL; all others with SQL are in `store`.
FEATURE_TABLES = {
    "observations/listing_tables.py",
    "observations/rows.py",
    "observations/tables.py",
    "search/documents.py",
    "search/index.py",
    "search/tables.py",
    "workers/tables.py",
    "zones/tables.py",
}


def holds_sql(one: Module) -> bool:
    """Tell whether a module may hold SQL."""
    return one.home == "store" or one.name in FEATURE_TABLES


def above_storage() -> tuple[Module, ...]:
    """Return the modules that may not know what a statement is."""
    return tuple(each for each in modules() if not holds_sql(each))


def test_only_the_journal_writes_into_notebooks() -> None:
    found = [f"{one.name}:{line}" for one in above_storage() for line in writes(one.tree)]

    assert {place.partition(":")[0] for place in found} == {JOURNAL}, found


def test_a_second_pen_is_found_under_another_name_too() -> None:
    tree = module(
        "services/second.py",
        "async def f(tx, pen):\n"
        "    await tx.append(None)\n"
        "    table = pen.tx.sessions\n"
        "    await table.remove(None)\n"
        "    write = pen.tx.append\n"
        "    messages = []\n"
        "    messages.append(1)\n"
        "    await tx.agents.save(None)\n",
    ).tree

    assert sorted(writes(tree)) == [2, 4, 5]


def test_only_the_journal_rings_the_bell() -> None:
    found = {one.name for one in above_storage() for _ in verbs_called(one.tree, "ring")}

    assert found == {JOURNAL}


def test_only_one_module_groups_rows_by_turn() -> None:
    found = {one.name for one in modules() for _ in groupings(one.tree)}

    assert found == {GROUPING}


def test_a_second_grouping_is_found_in_every_form() -> None:
    forms = (
        "from itertools import groupby\ngroupby(rows, key)",
        "import itertools\nitertools.groupby(rows)",
        "sorted(rows, key=lambda row: (row.turn, row.sequence))",
        "rows.sort(key=attrgetter('turn'))",
        "groups.setdefault(row.turn, []).append(row)",
        "groups[row.turn].append(row)",
        "SQL = 'SELECT 1 FROM messages GROUP BY turn'",
        "SQL = 'SELECT 1 FROM messages ORDER BY m.turn, sequence'",
    )

    assert [form for form in forms if not list(groupings(ast.parse(form)))] == []


def test_sql_stands_in_storage_only() -> None:
    found = [f"{one.name}:{line}" for one in above_storage() for line in statements(one.tree)]

    assert found == []


def test_a_statement_outside_storage_is_found() -> None:
    tree = ast.parse('"""Select what to show."""\nA = """\n-- All.\nSELECT 1"""\nB = "PRAGMA x"')

    assert list(statements(tree)) == [2, 5]


def test_no_value_is_woven_into_a_statement() -> None:
    found = [
        f"{one.name}:{line} {what}"
        for one in modules()
        if holds_sql(one)
        for line, what in woven(one)
    ]

    assert found == []


def test_a_woven_value_is_found_in_every_form() -> None:
    forms = (
        'f"SELECT id FROM agents WHERE slug = {slug}"',
        'f" AND title = {title}"',
        '"SELECT id FROM agents WHERE slug = %s" % slug',
        '"SELECT id FROM agents WHERE slug = " + slug',
        '"DELETE FROM agents WHERE slug = {}".format(slug)',
    )

    assert [form for form in forms if not list(woven(module("store/a.py", form)))] == []


def test_no_wish_of_a_caller_reaches_the_text_of_a_statement() -> None:
    canary = "') canary --"
    wishes = SessionQuery(
        owner=Owner(canary),
        agent_id=AgentId(canary),
        repo_id=RepoId(canary),
        tags=(canary, canary),
        text=canary,
        forked_from=SessionId(canary),
        before=(datetime(2026, 1, 1, tzinfo=UTC), canary),
    )

    for sql, parameters in (page_sql(wishes), count_sql(wishes)):
        assert "canary" not in sql
        assert set(re.findall(r":([a-z_0-9]+)", sql)) <= set(parameters)


def writes(tree: ast.Module) -> Iterator[int]:
    """Yield the line of each use of a verb that only the pen may use, also through a variable."""
    aliases = tables_by_variable(tree)
    for node in nodes(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value
            named = last_name(owner)
            table = aliases.get(named, named) if isinstance(owner, ast.Name) else named
            if (table, node.attr) in WRITING:
                yield node.lineno


def tables_by_variable(tree: ast.Module) -> dict[str, str]:
    """Return what each variable stands for that was set to an attribute, such as a table."""
    return {
        last_name(target): node.value.attr
        for node in nodes(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute)
        for target in node.targets
    }


def verbs_called(tree: ast.Module, verb: str) -> Iterator[int]:
    """Yield the line of each call of a method by that name."""
    for node in nodes(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=called)) if called == verb:
                yield node.lineno


def groupings(tree: ast.Module) -> Iterator[int]:
    """Yield the line of everything that looks like putting rows together by their turn."""
    for node in nodes(tree):
        match node:
            case ast.Call(func=called, args=arguments) if last_name(called) == "groupby":
                # Values by their type are not rows.
                if not (len(arguments) > 1 and last_name(arguments[1]) == "type"):
                    yield node.lineno
            case ast.keyword(arg="key", value=value) if _speaks_of_turn(value):
                yield value.lineno
            case ast.Call(func=ast.Attribute(attr="setdefault"), args=[key, *_]):
                if last_name(key) == "turn":
                    yield node.lineno
            case ast.Subscript(slice=ast.Attribute(attr="turn")):
                yield node.lineno
            case ast.Constant(value=str(text)):
                if re.search(r"(?:GROUP|ORDER) BY (?:\w+\.)?turn\b", text):
                    yield node.lineno


def _speaks_of_turn(key: ast.expr) -> bool:
    return any(
        last_name(node) == "turn" or (isinstance(node, ast.Constant) and node.value == "turn")
        for node in ast.walk(key)
    )


def statements(tree: ast.Module) -> Iterator[int]:
    """Yield the line of each string that is a statement."""
    for node in nodes(tree):
        match node:
            case ast.Constant(value=str(text)) if STATEMENT.match(text):
                yield node.lineno


def woven(one: Module) -> Iterator[tuple[int, str]]:
    """Yield each expression that is put into the text of a statement and is not a known name."""
    allowed = WOVEN.get(one.name, set())
    for node in nodes(one.tree):
        match node:
            case ast.JoinedStr(values=values) if _is_sql(values):
                for value in values:
                    if isinstance(value, ast.FormattedValue):
                        told = ast.unparse(value.value)
                        if told not in allowed:
                            yield node.lineno, told
            case ast.BinOp(left=left, right=right, op=ast.Mod() | ast.Add()):
                if _is_sql([left]) or _is_sql([right]):
                    yield node.lineno, ast.unparse(node)
            case ast.Call(func=ast.Attribute(attr="format", value=value)) if _is_sql([value]):
                yield node.lineno, ast.unparse(node)


def _is_sql(values: list[ast.expr]) -> bool:
    return any(
        isinstance(value, ast.Constant)
        and isinstance(value.value, str)
        and FRAGMENT.search(value.value) is not None
        for value in values
    )
