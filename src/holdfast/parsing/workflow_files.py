"""Workflow files, `.relavium.yaml`: reading, validating as a whole, and deterministic writing.

Validation reports all errors at once, and every way in which a secret could reach a prompt.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from holdfast.domain.errors import Code, Invalid, NotFound
from holdfast.domain.secrets import Scrubber
from holdfast.domain.text import is_encodable
from holdfast.parsing.agent_files import build_agent
from holdfast.parsing.file_schemas import (
    AgentNode,
    DocumentForm,
    EdgeForm,
    MergeNode,
    NodeForm,
    NoRules,
    NumberRules,
    OutputNode,
    TextRules,
    WorkflowContext,
    WorkflowForm,
    WorkflowInput,
    retry_faults,
)
from holdfast.parsing.files import (
    Fault,
    FileError,
    FormError,
    duplicate_faults,
    invalid_file,
    read_text,
    syntax_error,
    translate_fault,
)
from holdfast.parsing.regex import PatternError, compile_pattern
from holdfast.parsing.yaml import (
    LARGEST,
    WRITTEN_LARGEST,
    YamlError,
    read_written_yaml,
    read_yaml,
    write_yaml,
)
from holdfast.workflows.model import Workflow, placeholders, used_inputs

_BODY: Final = "workflow"
_RESERVED: Final = frozenset({"on_error", "data_mapping"})
_LISTS: Final[Mapping[str, Any]] = {
    "inputs": WorkflowInput,
    "context": WorkflowContext,
    "nodes": NodeForm,
    "edges": EdgeForm,
}
_RULES: Final[Mapping[str, type[Struct]]] = {"number": NumberRules, "boolean": NoRules}
_DEFAULTS: Final[Mapping[str, tuple[type, ...]]] = {"number": (int, float), "boolean": (bool,)}


def find_faults(raw: Any) -> list[Fault]:
    """Return all errors in a document, except those of its embedded agents."""
    if not isinstance(raw, dict):
        return [Fault("", "a workflow must be a mapping of keys to values")]
    faults = list(_check_mapping("", raw, DocumentForm))
    body = raw.get("workflow")
    if not isinstance(body, dict):
        return faults
    faults += _check_mapping(f"{_BODY}.", body, WorkflowForm)
    for name, kind in _LISTS.items():
        faults += _check_items(f"{_BODY}.{name}", body.get(name), kind)
    return faults or list(_broken_rules(body))


def _check_mapping(path: str, raw: Mapping[str, Any], kind: type[Struct]) -> Iterator[Fault]:
    """Validate a mapping key by key, because msgspec stops at the first error."""
    fields = {each.encode_name: each for each in msgspec.structs.fields(kind)}
    yield from (Fault(f"{path}{key}", "unknown key") for key in raw if key not in fields)
    for name, field in fields.items():
        if name not in raw and field.required:
            yield Fault(f"{path}{name}", "it is missing")
        elif name in raw:
            try:
                msgspec.convert(raw[name], field.type)
            except msgspec.ValidationError as error:
                yield translate_fault(f"{path}{name}", error)


def _check_items(path: str, items: Any, kind: Any) -> Iterator[Fault]:
    for number, item in enumerate(items if isinstance(items, list) else ()):
        here = f"{path}[{number}]"
        reserved = sorted(_RESERVED & set(item)) if isinstance(item, dict) else []
        if kind is EdgeForm and reserved:
            yield Fault(f"{here}.{reserved[0]}", "it is reserved and has no effect yet")
            continue
        try:
            form = msgspec.convert(item, kind)
        except msgspec.ValidationError as error:
            yield translate_fault(here, error)
        else:
            yield from _broken_item(here, form)


def _broken_item(path: str, form: Any) -> Iterator[Fault]:
    """Yield the errors of one item that types cannot express."""
    yield from retry_faults(f"{path}.retry", getattr(form, "retry", UNSET))
    match form:
        case WorkflowInput():
            yield from _broken_input(path, form)
        case AgentNode() if form.tools is not UNSET:
            yield from duplicate_faults(f"{path}.tools", form.tools)
        case MergeNode() if form.merge_strategy == "custom" and form.merge_fn is UNSET:
            yield Fault(f"{path}.merge_fn", "it is missing; type custom requires it")
        case OutputNode() if form.save_to is not UNSET and not _stays_inside(form.save_to):
            yield Fault(f"{path}.save_to", "it must be a relative path without ..")
        case _:
            pass


def _broken_input(path: str, form: WorkflowInput) -> Iterator[Fault]:
    if form.default is not UNSET and form.type == "secret":
        yield Fault(f"{path}.default", "a secret has no default")
    elif form.default is not UNSET and not _has_type(form.default, form.type):
        yield Fault(f"{path}.default", f"it is not a {form.type}")
    if form.validation is UNSET:
        return
    faults = list(
        _check_mapping(f"{path}.validation.", form.validation, _RULES.get(form.type, TextRules))
    )
    yield from faults
    for least, most in (("min", "max"), ("min_length", "max_length")):
        bounds = [form.validation[key] for key in (least, most) if key in form.validation]
        if not faults and len(bounds) == 2 and not bounds[0] <= bounds[1]:
            yield Fault(f"{path}.validation.{least}", f"it must not be above {most}")


def _has_type(default: Any, type_: str) -> bool:
    # In Python a bool is an int, but in a workflow file it is not a number.
    kinds = _DEFAULTS.get(type_, (str,))
    if isinstance(default, bool):
        return bool in kinds
    return isinstance(default, kinds) and (not isinstance(default, float) or isfinite(default))


def _stays_inside(path: str) -> bool:
    windows = PureWindowsPath(path)
    is_rooted = PurePosixPath(path).is_absolute() or bool(windows.drive or windows.root)
    return not is_rooted and ".." not in windows.parts


def _broken_rules(body: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the errors between items; each item is valid by itself."""
    for name, key in (("nodes", "id"), ("inputs", "name"), ("context", "key")):
        yield from duplicate_faults(f"{_BODY}.{name}", [item[key] for item in body.get(name, ())])
    parallel = {each["id"]: each["parallel_of"] for each in body["nodes"] if "parallel_of" in each}
    for number, edge in enumerate(body["edges"]):
        source = edge["from"].partition(":")[0]
        if source in parallel and edge["to"] not in parallel[source]:
            yield Fault(f"{_BODY}.edges[{number}].to", "it is not in parallel_of of its node")


def texts_in(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text with its path, including keys."""
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


def unprintable_places(texts: Iterable[tuple[str, str]]) -> list[Fault]:
    """Return the places of characters that cannot be encoded as UTF-8."""
    return [
        Fault(path, "a text contains an invalid character")
        for path, text in texts
        if not is_encodable(text)
    ]


_SECRETS: Final = re.compile(r"(?<![\w.])secrets\s*[.\[]")
_NAMED: Final = re.compile(r"(?<![\w.])(inputs?|ctx|context)\s*(?:\.\s*|\[\s*[\"'])([\w-]+)")
# The keys that are sent to a model or executed; all others are only descriptive.
_READ: Final = ("nodes", "agents", "tools")
_Name = tuple[str, str]
_VAULT: Final[_Name] = ("secrets", "")


def find_secret_leaks(body: Mapping[str, Any]) -> list[str]:
    """Return the places where a prompt, a message or a tool would receive a secret."""
    tainted = _tainted_names(body)
    return [
        path
        for name in _READ
        for path, text in texts_in(body.get(name), f"workflow.{name}")
        if not tainted.isdisjoint(_names_in(text))
    ]


def _tainted_names(body: Mapping[str, Any]) -> set[_Name]:
    """Return the names that hold a secret: secret inputs, and all names derived from them."""
    inputs = body.get("inputs", ())
    waiting = [_VAULT, *(_input(each["name"]) for each in inputs if each["type"] == "secret")]
    tainted = set(waiting)
    uses: dict[_Name, list[_Name]] = {}
    for name, text in _derived_names(body):
        for source in _names_in(text):
            uses.setdefault(source, []).append(name)
    while waiting:
        for name in uses.get(waiting.pop(), ()):
            if name not in tainted:
                tainted.add(name)
                waiting.append(name)
    return tainted


def _derived_names(body: Mapping[str, Any]) -> Iterator[tuple[_Name, str]]:
    """Yield the names that may be derived from others, with the texts that reference those."""
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


_NUMBER: Final = re.compile(r"-?[0-9]{1,100}(\.[0-9]{1,100})?([eE][-+]?[0-9]{1,3})?")


def read_inputs(workflow: Workflow, given: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of the inputs, those given and those with a default.

    Refused are names that the workflow does not have, values that break a rule, and a missing value
    that is required or that a text refers to. Errors name the input, never its value.
    """
    declared = {each["name"]: each for each in workflow.body.get("inputs", ())}
    unknown = [name for name in given if name not in declared]
    if unknown:
        known = f"its inputs are {', '.join(declared)}" if declared else "it has none"
        raise _wrong_input(unknown[0][:64], f"The workflow has no such input; {known}.")
    values: dict[str, str] = {}
    for name, form in declared.items():
        if name in given or "default" in form:
            values[name] = given[name] if name in given else _default_text(form["default"])
            if problem := _input_problem(values[name], form):
                raise _wrong_input(name, f"It {problem}.")
    needed = used_inputs(workflow) | {n for n, f in declared.items() if f.get("required")}
    missing = [name for name in declared if name in needed - set(values)]
    # Nothing can use the value of a secret, because no text may contain it.
    missing = [name for name in missing if declared[name]["type"] != "secret"]
    if missing:
        raise Invalid(
            Code.INVALID_INPUT,
            f"These inputs have no value: {', '.join(missing)}; give each one with --input "
            "NAME=VALUE.",
            {"inputs": missing},
        )
    return values


def _default_text(default: Any) -> str:
    return default if isinstance(default, str) else msgspec.json.encode(default).decode()


def _input_problem(text: str, form: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the value of an input."""
    rules = form.get("validation", {})
    if not is_encodable(text) or "\x00" in text:
        return "contains an invalid character"
    match form["type"]:
        case "secret":
            return "is a secret, which no text of a workflow may contain; leave it out"
        case "boolean":
            return None if text in ("true", "false") else "must be true or false"
        case "number":
            return _number_problem(text, rules)
        case "file_path" if not text.strip():
            return "must be a path"
        case _:
            return _text_problem(text, rules)


def _number_problem(text: str, rules: Mapping[str, Any]) -> str | None:
    if _NUMBER.fullmatch(text) is None or not isfinite(number := float(text)):
        return "must be a number"
    if number < rules.get("min", number):
        return f"must be at least {rules['min']}"
    return f"must be at most {rules['max']}" if number > rules.get("max", number) else None


def _text_problem(text: str, rules: Mapping[str, Any]) -> str | None:
    if len(text) < rules.get("min_length", 0):
        return f"must have at least {rules['min_length']} characters"
    if len(text) > rules.get("max_length", len(text)):
        return f"must have at most {rules['max_length']} characters"
    try:
        fits = "pattern" not in rules or compile_pattern(rules["pattern"]).is_all_of(text)
    except PatternError as error:
        return f"has an invalid pattern in the workflow: {error}"
    return None if fits else "must match the pattern that the workflow sets for it"


def _wrong_input(name: str, problem: str) -> Invalid:
    return Invalid(Code.INVALID_INPUT, f"Input {name}: {problem}", {"input": name})


_FAULTS_SHOWN: Final = 10
_PATH_LONGEST: Final = 200


def read_workflow(path: Path, scrubber: Scrubber | None = None) -> Workflow:
    """Return the workflow in a file; an unreadable or invalid file is refused."""
    return parse_workflow(read_workflow_text(path), where=str(path), scrubber=scrubber)


def read_workflow_text(path: Path) -> str:
    """Return the text of a possible workflow file."""
    try:
        return read_text(path, largest=WRITTEN_LARGEST)
    except FileError as error:
        if error.is_missing:
            raise NotFound(Code.PATH_NOT_FOUND, f"There is no file {path}.") from None
        raise syntax_error(str(path), error, Code.YAML_INVALID) from None


def parse_workflow(text: str, *, where: str, scrubber: Scrubber | None = None) -> Workflow:
    """Return the workflow described by YAML text; `where` names the source in errors.

    The export of a long session is larger than other YAML may be.
    """
    try:
        raw = _read(text)
    except YamlError as error:
        raise syntax_error(where, error, Code.YAML_INVALID) from None
    return build_workflow(raw, where=where, scrubber=scrubber)


def _read(text: str) -> Any:
    try:
        return read_written_yaml(text)
    except YamlError:
        if len(text.encode(errors="surrogatepass")) > LARGEST:
            raise
        return read_yaml(text)


def build_workflow(raw: Any, *, where: str, scrubber: Scrubber | None = None) -> Workflow:
    """Return the workflow described by a value."""
    faults = [*unprintable_places(texts_in(raw)), *find_faults(raw)]
    brought, leak = _agents(raw, where, scrubber)
    faults += brought
    if faults:
        # Truncated, because a key may be as long as the file.
        shown = [Fault(each.path[:_PATH_LONGEST], each.problem) for each in faults[:_FAULTS_SHOWN]]
        raise invalid_file(where, "workflow", shown, Code.WORKFLOW_INVALID)
    if leak is not None:
        raise leak
    if places := find_secret_leaks(raw["workflow"]):
        raise Invalid(
            Code.SECRET_INTERPOLATION,
            f"Text for a model must not contain a secret; {where} has one at "
            f"{', '.join(places[:_FAULTS_SHOWN])}.",
            {"file": where, "fields": places[:_FAULTS_SHOWN]},
        )
    return Workflow(raw)


def write_workflow(workflow: Workflow) -> str:
    """Return the text of a workflow; deterministic, so equal workflows have equal bytes."""
    return write_yaml(workflow.document)


def _agents(raw: Any, where: str, scrubber: Scrubber | None) -> tuple[list[Fault], Invalid | None]:
    """Validate the embedded agents; return a secret leak separately from the other faults."""
    body = raw.get("workflow") if isinstance(raw, dict) else None
    agents = body.get("agents") if isinstance(body, dict) else None
    faults: list[Fault] = []
    leak: Invalid | None = None
    names: list[str] = []
    for number, agent in enumerate(agents if isinstance(agents, list) else ()):
        here = f"workflow.agents[{number}]"
        if isinstance(agent, dict) and "$ref" in agent:
            faults += _broken_reference(here, agent)
            continue
        try:
            names.append(build_agent(agent, where=f"{where}, {here}", scrubber=scrubber).slug)
        except Invalid as error:
            if isinstance(error.__cause__, FormError):
                faults += [
                    Fault(f"{here}.{each.path}".rstrip("."), each.problem)
                    for each in error.__cause__.faults
                ]
            else:
                leak = leak or error
    return [*faults, *duplicate_faults("workflow.agents", names)], leak


def _broken_reference(path: str, agent: dict[str, Any]) -> list[Fault]:
    if set(agent) != {"$ref"} or not isinstance(agent["$ref"], str) or not agent["$ref"]:
        return [Fault(path, "a reference must consist of one $ref only")]
    return []
