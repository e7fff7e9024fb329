"""Workflow files, `.relavium.yaml`: read, checked as a whole, and written byte for byte.

Faults come in this order: the text, the form, secrets; they name places and rules, never values.
"""

from pathlib import Path
from typing import Any, Final

from holdfast.domain.errors import Code, Invalid, NotFound
from holdfast.domain.secrets import Scrubber
from holdfast.parsing.agent_files import agent_of
from holdfast.parsing.faults import Fault, repeated
from holdfast.parsing.files import FileError, read_text
from holdfast.parsing.workflow_rules import faults_of, texts_in, unreadable
from holdfast.parsing.workflow_secrets import secret_places
from holdfast.parsing.yaml_files import LARGEST, YamlError, read_yaml
from holdfast.parsing.yaml_output import write_yaml
from holdfast.workflows.model import Workflow

_FAULTS_TOLD: Final = 10
_PATH_LONGEST: Final = 200


def read_workflow(path: Path, scrubber: Scrubber | None = None) -> Workflow:
    """Return the workflow of a file; a file that cannot be read or is not valid is refused."""
    return parse_workflow(text_of(path), where=str(path), scrubber=scrubber)


def text_of(path: Path) -> str:
    """Return the text of a file that may be a workflow."""
    try:
        return read_text(path, largest=LARGEST)
    except FileError as error:
        if error.is_missing:
            raise NotFound(Code.PATH_NOT_FOUND, f"There is no file {path}.") from None
        raise _not_yaml(str(path), YamlError(error.problem)) from None


def parse_workflow(text: str, *, where: str, scrubber: Scrubber | None = None) -> Workflow:
    """Return the workflow that a text of YAML describes; `where` is what an error calls it."""
    try:
        raw = read_yaml(text)
    except YamlError as error:
        raise _not_yaml(where, error) from None
    return workflow_of(raw, where=where, scrubber=scrubber)


def workflow_of(raw: Any, *, where: str, scrubber: Scrubber | None = None) -> Workflow:
    """Return the workflow that a value describes."""
    faults = [*unreadable(texts_in(raw)), *faults_of(raw)]
    brought, leak = _agents(raw, where, scrubber)
    faults += brought
    if faults:
        # Cut, because a key may be as long as the file.
        told = [Fault(each.path[:_PATH_LONGEST], each.problem) for each in faults[:_FAULTS_TOLD]]
        raise _invalid(where, told)
    if leak is not None:
        raise leak
    if places := secret_places(raw["workflow"]):
        raise Invalid(
            Code.SECRET_INTERPOLATION,
            f"A secret is never put into a text that a model reads; {where} does so at "
            f"{', '.join(places[:_FAULTS_TOLD])}.",
            {"file": where, "fields": places[:_FAULTS_TOLD]},
        )
    return Workflow(raw)


def write_workflow(workflow: Workflow) -> str:
    """Return the text of a workflow: the same bytes for the same workflow, every time."""
    return write_yaml(workflow.document)


def _agents(raw: Any, where: str, scrubber: Scrubber | None) -> tuple[list[Fault], Invalid | None]:
    """Judge the agents that are brought along; a secret in one is told behind other faults."""
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
            names.append(agent_of(agent, where=f"{where}, {here}", scrubber=scrubber).slug)
        except Invalid as error:
            if error.code is Code.AGENT_INVALID:
                fields = error.details["fields"]
                faults += [
                    Fault(f"{here}.{each}".rstrip("."), "it is not valid") for each in fields
                ]
            else:
                leak = leak or error
    return [*faults, *repeated("workflow.agents", names)], leak


def _broken_reference(path: str, agent: dict[str, Any]) -> list[Fault]:
    if set(agent) != {"$ref"} or not isinstance(agent["$ref"], str) or not agent["$ref"]:
        return [Fault(path, "a reference is one $ref and nothing else")]
    return []


def _not_yaml(where: str, error: YamlError) -> Invalid:
    place = f", line {error.line}, column {error.column}" if error.line else ""
    return Invalid(
        Code.YAML_INVALID,
        f"{where}{place}: {error.problem}.",
        {"file": where, "line": error.line, "column": error.column},
    )


def _invalid(where: str, faults: list[Fault]) -> Invalid:
    told = "; ".join(f"{fault.path or 'the file'}: {fault.problem}" for fault in faults)
    return Invalid(
        Code.WORKFLOW_INVALID,
        f"{where} is not a valid workflow: {told}.",
        {"file": where, "fields": [fault.path for fault in faults]},
    )
