"""What is wrong with a workflow file, all at once: types item by item, and what they leave open."""

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from holdfast.domain.text import is_encodable
from holdfast.parsing.faults import Fault, fault_of, repeated
from holdfast.parsing.workflow_nodes import AgentNode, MergeNode, NodeForm, OutputNode
from holdfast.parsing.workflow_schema import (
    ContextForm,
    DocumentForm,
    EdgeForm,
    InputForm,
    NoRules,
    NumberRules,
    TextRules,
    WorkflowForm,
)

_BODY: Final = "workflow"
_RESERVED: Final = frozenset({"on_error", "data_mapping"})
_LISTS: Final[Mapping[str, Any]] = {
    "inputs": InputForm,
    "context": ContextForm,
    "nodes": NodeForm,
    "edges": EdgeForm,
}
_RULES: Final[Mapping[str, type[Struct]]] = {"number": NumberRules, "boolean": NoRules}
_DEFAULTS: Final[Mapping[str, tuple[type, ...]]] = {"number": (int, float), "boolean": (bool,)}


def faults_of(raw: Any) -> list[Fault]:
    """Return everything that is wrong with a document, but for the agents it brings along."""
    if not isinstance(raw, dict):
        return [Fault("", "a workflow is a mapping of keys to values")]
    faults = list(_judged("", raw, DocumentForm))
    body = raw.get("workflow")
    if not isinstance(body, dict):
        return faults
    faults += _judged(f"{_BODY}.", body, WorkflowForm)
    for name, kind in _LISTS.items():
        faults += _items(f"{_BODY}.{name}", body.get(name), kind)
    return faults or list(_broken_rules(body))


def _judged(path: str, raw: Mapping[str, Any], kind: type[Struct]) -> Iterator[Fault]:
    """Judge a mapping key by key, because the library stops at the first that is wrong."""
    fields = {each.encode_name: each for each in msgspec.structs.fields(kind)}
    yield from (Fault(f"{path}{key}", "there is no such key") for key in raw if key not in fields)
    for name, field in fields.items():
        if name not in raw and field.required:
            yield Fault(f"{path}{name}", "it is missing")
        elif name in raw:
            try:
                msgspec.convert(raw[name], field.type)
            except msgspec.ValidationError as error:
                yield fault_of(f"{path}{name}", error)


def _items(path: str, items: Any, kind: Any) -> Iterator[Fault]:
    for number, item in enumerate(items if isinstance(items, list) else ()):
        here = f"{path}[{number}]"
        reserved = sorted(_RESERVED & set(item)) if isinstance(item, dict) else []
        if kind is EdgeForm and reserved:
            yield Fault(f"{here}.{reserved[0]}", "it is reserved, and has no meaning yet")
            continue
        try:
            form = msgspec.convert(item, kind)
        except msgspec.ValidationError as error:
            yield fault_of(here, error)
        else:
            yield from _broken_item(here, form)


def _broken_item(path: str, form: Any) -> Iterator[Fault]:
    """Yield what the types of one item cannot express."""
    match form:
        case InputForm():
            yield from _broken_input(path, form)
        case AgentNode() if form.tools is not UNSET:
            yield from repeated(f"{path}.tools", form.tools)
        case MergeNode() if form.merge_strategy == "custom" and form.merge_fn is UNSET:
            yield Fault(f"{path}.merge_fn", "it is missing, and custom needs it")
        case OutputNode() if form.save_to is not UNSET and not _stays_inside(form.save_to):
            yield Fault(f"{path}.save_to", "it must be relative, and without ..")
        case _:
            pass


def _broken_input(path: str, form: InputForm) -> Iterator[Fault]:
    if form.default is not UNSET and form.type == "secret":
        yield Fault(f"{path}.default", "a secret has none")
    elif form.default is not UNSET and not _is_of(form.default, form.type):
        yield Fault(f"{path}.default", f"it is no {form.type}")
    if form.validation is UNSET:
        return
    faults = list(_judged(f"{path}.validation.", form.validation, _RULES.get(form.type, TextRules)))
    yield from faults
    for least, most in (("min", "max"), ("min_length", "max_length")):
        bounds = [form.validation[key] for key in (least, most) if key in form.validation]
        if not faults and len(bounds) == 2 and not bounds[0] <= bounds[1]:
            yield Fault(f"{path}.validation.{least}", f"it must not be above {most}")


def _is_of(default: Any, type_: str) -> bool:
    # A bool is an int to Python, and not to who writes a file.
    kinds = _DEFAULTS.get(type_, (str,))
    if isinstance(default, bool):
        return bool in kinds
    return isinstance(default, kinds) and (not isinstance(default, float) or isfinite(default))


def _stays_inside(path: str) -> bool:
    windows = PureWindowsPath(path)
    is_rooted = PurePosixPath(path).is_absolute() or bool(windows.drive or windows.root)
    return not is_rooted and ".." not in windows.parts


def _broken_rules(body: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield what only the whole shows; every item has passed by itself."""
    for name, key in (("nodes", "id"), ("inputs", "name"), ("context", "key")):
        yield from repeated(f"{_BODY}.{name}", [item[key] for item in body.get(name, ())])
    parallel = {each["id"]: each["parallel_of"] for each in body["nodes"] if "parallel_of" in each}
    for number, edge in enumerate(body["edges"]):
        source = edge["from"].partition(":")[0]
        if source in parallel and edge["to"] not in parallel[source]:
            yield Fault(f"{_BODY}.edges[{number}].to", "it is not in parallel_of of its node")


def texts_in(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text with its path, keys among them."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            here = f"{path}.{key}".removeprefix(".")
            yield here, key
            yield from texts_in(inner, here)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from texts_in(inner, f"{path}[{number}]")


def unreadable(texts: Iterable[tuple[str, str]]) -> list[Fault]:
    """Return the places of characters that no file of ours can hold."""
    return [
        Fault(path, "a character has no place in a text")
        for path, text in texts
        if not is_encodable(text)
    ]
