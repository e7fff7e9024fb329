"""Agents as files: imports one, and resolves an agent reference of the command line."""

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.acp.client.presets import PRESETS
from holdfast.api import Holdfast
from holdfast.cli.output import Printer
from holdfast.cli.secrets import secrets_here
from holdfast.config import absolute_model
from holdfast.domain.agents import Agent, LlmRuntime, file_form, tool_warnings
from holdfast.domain.errors import Code, Denied, Invalid, NotFound
from holdfast.parsing import agent_files
from holdfast.parsing.agent_files import AgentFile, build_agent


def read_agent_file(file: Path) -> AgentFile:
    """Return the agent of a file; a script path is relative to the file's folder."""
    rename = partial(absolute_model, folder=file.absolute().parent)
    return agent_files.read_agent_file(file, secrets_here().scrubber).with_models(rename)


async def import_agent(holdfast: Holdfast, described: AgentFile) -> tuple[Agent, bool]:
    """Create or update an agent from a file; return it and whether it is new."""
    fields = described.fields()
    try:
        known = await holdfast.agents.get(holdfast.owner, described.slug)
    except NotFound:
        agent = await holdfast.agents.create(holdfast.owner, {**fields, "grant": None})
        return agent, True
    fields |= _unchanged_fields(known, described, (await holdfast.defaults()).model)
    return await holdfast.agents.update(holdfast.owner, described.slug, fields), False


def _unchanged_fields(known: Agent, described: AgentFile, default: str) -> dict[str, Any]:
    """Return the fields of an existing agent that a file cannot express.

    So exporting an agent and importing the file leaves it unchanged.
    """
    kept: dict[str, Any] = {"tools": merge_tools(known, described.fields()["tools"])}
    is_open = isinstance(known.runtime, LlmRuntime) and not known.runtime.models
    if is_open and [model.ref for model in described.models] == [default]:
        kept |= {"models": (), "runtime": replace(described.runtime, models=())}
    return kept


def merge_tools(known: Agent, named: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the named tools; tools the agent already has retain their definitions."""
    described = {tool.name: tool.as_given() for tool in known.tools if tool.is_described}
    return [{**each, **dict(described.get(each["name"], each))} for each in named]


async def resolve_agent(holdfast: Holdfast, ref: str, *, folder: Path | None, home: Path) -> str:
    """Return the id or slug of the stored agent that a reference means.

    `folder` is the session's working directory; None if that is on another machine.
    """
    file = find_agent_file(ref, folder, home)
    if file is None:
        await _require_created(holdfast, ref)
        return ref
    described = read_named_agent_file(ref, file)
    if is_path(ref):
        agent = await store_agent(holdfast, described)
    elif file.parent == home / "agents":
        agent, _ = await import_agent(holdfast, described)
    else:
        agent = await _store_with_consent(holdfast, described, file)
    return agent.id


async def _require_created(holdfast: Holdfast, ref: str) -> None:
    """Raise an error that explains how to create an agent for a well-known program."""
    if ref in PRESETS and await _find_stored(holdfast, ref) is None:
        raise NotFound(
            Code.AGENT_NOT_FOUND,
            f"There is no agent {ref} yet; create it with `holdfast agents create --preset {ref}`.",
        )


def find_agent_file(ref: str, folder: Path | None, home: Path) -> Path | None:
    """Return the file that a reference names, if it names one of this machine."""
    if folder is None and not is_path(ref):
        return None
    return agent_files.find_agent_file(ref, working_dir=folder or Path.cwd(), home=home)


def read_named_agent_file(ref: str, file: Path) -> AgentFile:
    """Return the agent of a file; a file found by name must contain an agent of that name."""

    described = read_agent_file(file)
    if not is_path(ref) and described.slug != ref:
        result = (
            f"{file} defines agent {described.slug}, but its name says {ref}; rename the "
            "file or change its slug."
        )
        raise Invalid(Code.AGENT_INVALID, result, {"file": str(file), "fields": ["id"]})
    return described


async def store_agent(holdfast: Holdfast, described: AgentFile) -> Agent:
    """Return a stored agent equal to a file; a different agent of the same name is not changed."""
    found = await _find_same(holdfast, described)
    if found is not None:
        return found
    fields = {**described.fields(), "grant": None}
    if await _find_stored(holdfast, described.slug) is not None:
        fields["slug"] = _own_slug(described)
    return await holdfast.agents.create(holdfast.owner, fields)


async def _store_with_consent(holdfast: Holdfast, described: AgentFile, file: Path) -> Agent:
    found = await _find_same(holdfast, described)
    if found is None:
        raise Denied(
            Code.CONSENT_REQUIRED,
            f"This folder contains an agent {described.slug} that you have not approved; "
            f"read {file}, then approve its current content with `holdfast agents import "
            f"{file}`.",
            {"file": str(file), "agent": described.slug},
        )
    return found


async def _find_same(holdfast: Holdfast, described: AgentFile) -> Agent | None:
    """Return the stored agent equal to the file, under its own slug or the extended one."""
    for slug in (described.slug, _own_slug(described)):
        agent = await _find_stored(holdfast, slug)
        if agent is not None and await _matches_file(holdfast, agent, described):
            return agent
    return None


async def _matches_file(holdfast: Holdfast, agent: Agent, described: AgentFile) -> bool:
    if not isinstance(agent.runtime, LlmRuntime) or not agent.system_prompt:
        return False
    refs = {model.id: model.ref for model in await holdfast.models.list()}
    # An agent without a model is compared using the default, because a file must name one.
    form = file_form(agent, refs, default=(await holdfast.defaults()).model)
    try:
        result = build_agent(form, where=agent.slug)
    except Invalid:
        return False
    return replace(result, slug=described.slug) == described


async def _find_stored(holdfast: Holdfast, slug: str) -> Agent | None:
    try:
        return await holdfast.agents.get(holdfast.owner, slug)
    except NotFound:
        return None


def _own_slug(described: AgentFile) -> str:
    """Return a deterministic slug for an agent whose own slug is taken."""
    digest = hashlib.sha256(msgspec.json.encode(described, order="sorted")).hexdigest()
    return f"{described.slug[:240]}-{digest[:8]}"


def is_path(ref: str) -> bool:
    """Return whether a reference is the path of a file, and not a slug."""
    return "/" in ref or "\\" in ref or ref.endswith((".yaml", ".yml"))


def remark_tools(printer: Printer, fields: dict[str, Any]) -> None:
    """Say which tools do not exist; they may be functions of a program."""
    # Others are defined by their author.
    bare = (tool["name"] for tool in fields.get("tools", ()) if set(tool) == {"name"})
    for warning in tool_warnings(bare, frozenset()):
        printer.remark(warning)
