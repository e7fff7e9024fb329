"""Secrets have no place in what a model reads: not by name, and not by any detour in the file."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.parsing.workflow_rules import texts_in
from holdfast.workflows.model import placeholders

_SECRETS: Final = re.compile(r"(?<![\w.])secrets\s*[.\[]")
_NAMED: Final = re.compile(r"(?<![\w.])(inputs?|ctx|context)\s*(?:\.\s*|\[\s*[\"'])([\w-]+)")
# What is read by a model, or run: everything else only tells about the workflow.
_READ: Final = ("nodes", "agents", "tools")
_Name = tuple[str, str]
_VAULT: Final[_Name] = ("secrets", "")


def secret_places(body: Mapping[str, Any]) -> list[str]:
    """Return where a prompt, a message or a tool's text would be given a secret."""
    tainted = _tainted(body)
    return [
        path
        for name in _READ
        for path, text in texts_in(body.get(name), f"workflow.{name}")
        if not tainted.isdisjoint(_names_in(text))
    ]


def _tainted(body: Mapping[str, Any]) -> set[_Name]:
    """Return the names that stand for a secret: inputs of that type, and what is made of them."""
    inputs = body.get("inputs", ())
    waiting = [_VAULT, *(_input(each["name"]) for each in inputs if each["type"] == "secret")]
    tainted = set(waiting)
    uses: dict[_Name, list[_Name]] = {}
    for name, text in _made(body):
        for source in _names_in(text):
            uses.setdefault(source, []).append(name)
    while waiting:
        for name in uses.get(waiting.pop(), ()):
            if name not in tainted:
                tainted.add(name)
                waiting.append(name)
    return tainted


def _made(body: Mapping[str, Any]) -> Iterator[tuple[_Name, str]]:
    """Yield the names that may be made of others, with the texts that say of which."""
    for each in body.get("context", ()):
        for _, text in texts_in(each["value"]):
            yield ("ctx", each["key"]), text
    for each in body.get("inputs", ()):
        for _, text in texts_in(each.get("default")):
            yield _input(each["name"]), text


def _names_in(text: str) -> Iterator[_Name]:
    for inside in placeholders(text):
        if _SECRETS.search(inside):
            yield _VAULT
        for kind, name in _NAMED.findall(inside):
            yield _input(name) if kind.startswith("input") else ("ctx", name)


def _input(name: str) -> _Name:
    return "input", name
