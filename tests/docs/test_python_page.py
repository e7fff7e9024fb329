"""Holds the tables of the Python page to the services: no verb is missing, none is made up."""

import collections.abc
import inspect
import re
from typing import get_type_hints

import holdfast
from holdfast import HoldfastError, LocalHoldfast, api, app
from holdfast.domain.agent_processes import KnownProgram
from holdfast.domain.ids import Owner
from tests.docs.blocks import ROOT
from tests.marks import each_case

PAGE = (ROOT / "docs" / "python.md").read_text("utf-8")
LISTED = {
    name: set(verbs.split())
    for name, verbs in re.findall(r"^\| `hf\.([a-z_]+)` \| `([a-z_ ]+)` \|$", PAGE, re.MULTILINE)
}
# `api.py` imports the services for type checkers only.
NAMES = {**vars(collections.abc), **vars(app), "KnownProgram": KnownProgram, "Owner": Owner}
PARTS = {"children", "functions", "observations", "search", "services", "workers"}
PARTS |= {"workflows", "zones"}
SERVICES = {
    name: kind
    for name, kind in get_type_hints(LocalHoldfast, localns=NAMES).items()
    if kind.__module__.partition(".")[2].partition(".")[0] in PARTS
}
# Used by other parts of Holdfast, and of no use to a program.
FOR_NEIGHBOURS = {
    "agents": {"in_repositories", "make", "seed"},
    "approvals": {"attach", "decision", "of", "standing", "withdraw"},
    "calls": {"give_answer"},
    "children": {"answer", "connect", "ids", "invoke", "spawn_idempotent", "sweep"},
    "agent_processes": {"keep", "known", "of", "recover", "start", "tend"},
    "events": {"forget", "reader", "require", "sequence_of", "start"},
    "maintenance": {"keep"},
    "messages": {
        *("excerpts", "is_interrupted", "record_idempotent", "send_idempotent", "unfinished"),
    },
    "models": {"chain", "check", "find_or_add", "keep", "make", "named", "resolve"},
    "observations": {"rebuild"},
    "repos": {"make", "require_folder", "require_inside"},
    "search": {"rebuild"},
    "secrets": {"account_to_set", "key_of", "of_host", "of_server", "of_variable", "remember"},
    "sessions": {"add_functions", "close_idle", "make", "make_fork", "seen"},
    "tokens": {
        *("ensure_local", "exchange", "learn_local", "list_all"),
        *("resolve", "sign_in_code", "still_valid"),
    },
    "tools": {"close", "connect", "find", "missing", "names", "open_with"},
    "workers": {"announce", "get", "sweep", "withdraw"},
    "zones": {"raw_lines"},
}


VERBS = {
    name: {
        verb for verb, _ in inspect.getmembers(kind, inspect.isfunction) if not verb.startswith("_")
    }
    - FOR_NEIGHBOURS.get(name, set())
    for name, kind in SERVICES.items()
}


def test_every_service_is_listed() -> None:
    assert set(LISTED) == {name for name, verbs in VERBS.items() if verbs}


@each_case("name", sorted(SERVICES))
def test_every_verb_of_a_service_is_listed(name: str) -> None:
    assert LISTED.get(name, set()) == VERBS[name]


def test_every_class_of_errors_is_listed_with_what_can_be_done() -> None:
    section = PAGE.partition("## Errors")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([A-Z][A-Za-z]+)` \| [a-z]", section, re.MULTILINE)

    assert listed == [kind.__name__ for kind in HoldfastError.__subclasses__()]


def test_the_public_names_are_those_of_the_page() -> None:
    section = PAGE.partition("## Public names")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| [a-z]+ \| `([A-Za-z_ ]+)` \|$", section, re.MULTILINE)
    names = [name for line in listed for name in line.split()]

    # A module, and not a name of the package's table.
    assert sorted(names) == sorted({*holdfast.__all__, "sync"} - {"__version__"})


CLIENT_PAGE = (ROOT / "docs" / "client.md").read_text("utf-8")
# Refused or without effect over HTTP, which the page says in a table of its own.
LOCAL_ONLY = {
    "media": {"keep"},
    "mcp_servers": {"attach"},
    "models": {"check"},
    "repos": {"require_folder"},
}


def test_the_page_of_the_client_lists_the_verbs_of_the_api() -> None:
    groups = {
        name: vars(api)[value.fget.__annotations__["return"].__name__]
        for name, value in vars(api.Holdfast).items()
        if isinstance(value, property) and name != "owner"
    }
    verbs = {
        name: {verb for verb, _ in inspect.getmembers(group, inspect.isfunction) if verb[0] != "_"}
        - LOCAL_ONLY.get(name, set())
        for name, group in groups.items()
    }
    listed = re.findall(r"^\| `hf\.([a-z_]+)` \| `([a-z_ ]+)` \|$", CLIENT_PAGE, re.MULTILINE)

    assert {name: set(words.split()) for name, words in listed} == {
        name: words for name, words in verbs.items() if words
    }
