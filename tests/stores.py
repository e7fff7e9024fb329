"""On which store a test runs: on the embedded one, and what is named here on Postgres as well.

`--store=postgres` runs everything there that says anything about a store; without it the files in
`USUAL` are run on both. Of those, `make test` runs the storage contract and the turns of a session
on Postgres, and `make torture` the others.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from tests.postgres import Databases


SQLITE, POSTGRES = "sqlite", "postgres"
ROOT: Final = Path(__file__).parent
VARIABLE: Final = "HOLDFAST_DATABASE_URL"

# What holds for every store, by folder; a star is all of its files.
CONTRACT: Final = {
    "store": (
        *("test_event_rows", "test_graph_checkpoints", "test_lineage"),
        *("test_observation_tables", "test_record"),
        *("test_search_tables", "test_session_queries", "test_session_table", "test_tables"),
        *("test_token_table", "test_views"),
    ),
    "importers": ("*",),
    "observations": ("*",),
    "search": ("*",),
    "services": ("*",),
    "zones": ("*",),
    "engine": ("*",),
    "execution": ("*",),
    "http": ("*",),
    "children": ("*",),
    "workers": ("*",),
}
# About files, or about what only a file can be damaged in: these run on the embedded store.
EMBEDDED: Final = {
    # Two homes, which would be one database.
    "api/test_messages": ("who_polls", "text_so_far"),
    "execution/test_system": "*",
    "services/test_agent_processes": ("is_noted_without_writing_all", "passed_over_and_named"),
    "services/test_deletions": ("in_no_file",),
    "services/test_history_bounds": ("damaged_claim", "hides_no_timeline"),
    "observations/test_rebuild": ("damaged_claim", "claims_are_gone"),
    "services/test_recovery": ("may_be_alive",),
    "services/test_session_lists": ("only_while_somebody_alive",),
    "services/test_verification": ("behind_our_back",),
    "zones/test_damage": ("full_disk",),
    "store/test_observation_tables": ("of_another_by_its_key", "damaged_claim", "computed_again"),
    "store/test_search_tables": (
        "no_trace",
        "damaged",
        "not_what_was_written",
        "index",
        "went_without",
    ),
    "store/test_session_queries": ("reads_no_message_row", "without_sorting"),
    "store/test_token_table": ("pages_contradict",),
    "store/test_views": ("comes_with_python",),
}
# Of these, what `make test` tries on Postgres, too: the contract of the tables, and a journey.
QUICK: Final = {"store": CONTRACT["store"], "services": ("test_turns",)}
# What a run of all tests and `make torture` try there.
USUAL: Final = {
    "store": CONTRACT["store"],
    "importers": ("test_template_sessions",),
    "services": (
        *("test_turns", "test_messages", "test_interrupts", "test_recovery", "test_events"),
        *("test_process_limit", "test_pauses", "test_client_calls", "test_claims"),
    ),
    "workers": ("test_workers",),
    "zones": ("test_adoption", "test_archives", "test_binding", "test_replay", "test_service"),
    "engine": ("test_runtime",),
    "http": ("test_sessions", "test_messages"),
    "children": ("test_invoke", "test_tree"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("holdfast").addoption(
        "--store",
        choices=(SQLITE, POSTGRES, "both"),
        default="both",
        help="which store tests run on; both: what is usual on both, the rest on the embedded one",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    stores = _stores(metafunc)
    if stores != (SQLITE,):
        # A server has to be started for them, which `make check` has no time for.
        is_quick = _is_among(Path(str(metafunc.module.__file__)), QUICK)
        marks = (pytest.mark.slow,) if is_quick else (pytest.mark.slow, pytest.mark.torture)
        marked = [pytest.param(each, marks=marks if each == POSTGRES else ()) for each in stores]
        metafunc.parametrize("kept_on", marked, indirect=True)


def _stores(metafunc: pytest.Metafunc) -> tuple[str, ...]:
    wanted = str(metafunc.config.getoption("--store"))
    path = Path(str(metafunc.module.__file__))
    if wanted == SQLITE or _is_embedded(path, metafunc.definition.name):
        return (SQLITE,)
    if wanted == POSTGRES:
        return (POSTGRES,) if _is_among(path, CONTRACT) else (SQLITE,)
    return (SQLITE, POSTGRES) if _is_among(path, USUAL) else (SQLITE,)


def _is_embedded(path: Path, test: str) -> bool:
    parts = EMBEDDED.get(f"{path.parent.name}/{path.stem}", ())
    return any(part == "*" or part in test for part in parts)


def _is_among(path: Path, files: dict[str, tuple[str, ...]]) -> bool:
    parts = path.relative_to(ROOT).parts if path.is_relative_to(ROOT) else ()
    names = files.get(parts[0], ()) if len(parts) > 1 else ()
    return "*" in names or path.stem in names


# For every test, because only then it is there before whatever else a test asks for.
@pytest.fixture(autouse=True)
def kept_on(request: pytest.FixtureRequest) -> str:
    """Have whatever the test opens be kept on the store of its turn."""
    store = str(getattr(request, "param", SQLITE))
    if store == POSTGRES:
        databases: Databases = request.getfixturevalue("databases")
        patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
        patch.setenv(VARIABLE, databases.empty())
    return store


@pytest.fixture(scope="session")
def databases() -> "Iterator[Databases]":
    """Run a Postgres for as long as tests need one."""
    # Imported here, because what is imported with a plugin is not seen by the coverage.
    from tests.postgres import Databases, running

    with running() as server:
        found = Databases(server)
        yield found
        found.close()
