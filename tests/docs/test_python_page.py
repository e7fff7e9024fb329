"""Holds the tables of the Python page to the services: no verb is missing, none is made up."""

import inspect
import re
from typing import get_type_hints

import pytest

from holdfast import Holdfast, HoldfastError
from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs" / "python.md").read_text("utf-8")
LISTED = {
    name: set(verbs.split())
    for name, verbs in re.findall(r"^\| `house\.([a-z]+)` \| `([a-z_ ]+)` \|$", PAGE, re.MULTILINE)
}
SERVICES = {
    name: kind
    for name, kind in get_type_hints(Holdfast).items()
    if kind.__module__.startswith("holdfast.services.")
}
# Public to their neighbours in the house, and of no use to a program.
FOR_NEIGHBOURS = {
    "agents": {"built_in", "make"},
    "approvals": {"decision", "of", "standing", "withdraw"},
    "events": {"batches", "reader", "require", "sequence_of", "start"},
    "exports": {"masked", "rows"},
    "housekeeping": {"keep"},
    "messages": {"interrupted", "make", "unfinished"},
    "models": {"chain", "check", "resolve"},
    "repos": {"make", "require_folder", "require_inside"},
    "secrets": {"key_of", "of_host", "of_server", "remember"},
    "sessions": {"close_idle", "make", "make_fork"},
    "tokens": {
        *("ensure_local", "exchange", "learn_local", "list_all"),
        *("resolve", "sign_in_code", "still_valid"),
    },
}


def test_every_service_is_listed() -> None:
    assert set(LISTED) == set(SERVICES)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_verb_of_a_service_is_listed(name: str) -> None:
    verbs = {
        verb
        for verb, _ in inspect.getmembers(SERVICES[name], inspect.isfunction)
        if not verb.startswith("_")
    }

    assert LISTED[name] == verbs - FOR_NEIGHBOURS.get(name, set())


def test_every_class_of_errors_is_listed_with_what_can_be_done() -> None:
    section = PAGE.partition("## Errors")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([A-Z][A-Za-z]+)` \| [a-z]", section, re.MULTILINE)

    assert listed == [kind.__name__ for kind in HoldfastError.__subclasses__()]
