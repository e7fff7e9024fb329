"""Texts for both databases: how names become numbers, and that Postgres takes every one of them."""

import pkgutil
from importlib import import_module

import pytest

import holdfast
from holdfast.search.documents import EMPTY, SET_SECURE_DELETE
from holdfast.store.postgres.dialect import OVERRIDES, Statement, statement_of
from tests.marks import each_case
from tests.postgres import Databases

# What only a file can be asked, or damaged in.
OF_FILES = {"NOT INDEXED", "INDEXED BY", "sqlite_schema", "pragma_"}
# The parts with texts that both databases are sent.
PARTS = {"observations", "search", "store", "zones"}


def texts() -> list[str]:
    """Return every text that tables send, without those that are put together when they are."""
    found: dict[str, None] = {}
    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        _, part, *rest = module.name.split(".")
        is_checks = module.name.endswith(".sqlite.checks")
        # What is below `store/sqlite` and `store/postgres` is about one of them.
        if part not in PARTS or (part == "store" and len(rest) > 1 and not is_checks):
            continue
        for value in vars(import_module(module.name)).values():
            if isinstance(value, str) and value.startswith("\n--") and _is_whole(value):
                found[value] = None
    return list(found)


def _is_whole(text: str) -> bool:
    is_of_files = any(word in text for word in OF_FILES) or text == SET_SECURE_DELETE
    return "{" not in text and not text.endswith("VALUES ") and not is_of_files


@each_case(
    ("text", "statement"),
    [
        ("SELECT :a, :b, :a", Statement("SELECT $1, $2, $1", ("a", "b"))),
        ("SELECT ':a', \":b\" -- :c\n, :d", Statement("SELECT ':a', \":b\" -- :c\n, $1", ("d",))),
        ("SELECT 'it''s :a', :b::text", Statement("SELECT 'it''s :a', $1::text", ("b",))),
        (
            "SELECT 1 LIMIT :limit",
            Statement("SELECT 1 LIMIT nullif(CAST($1 AS BIGINT), -1)", ("limit",)),
        ),
    ],
)
def test_names_become_numbers_where_they_are_names(text: str, statement: Statement) -> None:
    assert statement_of(text) == statement


def test_every_override_is_found_by_a_text_that_is_sent() -> None:
    assert OVERRIDES.keys() <= {*texts(), *EMPTY}
    assert [text for text, other in OVERRIDES.items() if text == other] == []


@pytest.mark.slow
def test_postgres_takes_every_text(databases: Databases) -> None:
    databases.empty()
    statements = {statement_of(text).sql for text in texts()}

    # Judged by being prepared, and run by nobody.
    prepared = [f"PREPARE judged_{number} AS {sql}" for number, sql in enumerate(statements)]
    databases.run("usual", prepared)

    assert len(statements) > 150
