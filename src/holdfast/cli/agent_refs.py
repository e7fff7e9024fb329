"""Which agent a reference means: a file's or a stored one, and never a stranger's without consent.

A repository may describe agents. Its files are looked at first, so one of them could answer under
the name of yours; it is used only once you have imported that very file.
"""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from holdfast.domain.agents import Agent, LlmRuntime
from holdfast.domain.errors import Code, Denied, Invalid, NotFound

if TYPE_CHECKING:
    from holdfast.cli.house import House
    from holdfast.parsing.agent_files import AgentFile


async def agent_named(holdfast: "House", ref: str, folder: Path | None) -> str:
    """Return the stored agent that a reference means, by its id or as it was given.

    `folder` is where the session works; nothing where that is another machine's.
    """
    from holdfast.cli.agent_files import imported

    home = Path(holdfast.config.home)
    file = file_named(ref, folder, home)
    if file is None:
        await _require_made(holdfast, ref)
        return ref
    described = describing(ref, file)
    if _is_path(ref):
        agent = await kept(holdfast, described)
    elif file.parent == home / "agents":
        agent, _ = await imported(holdfast, described)
    else:
        agent = await _agreed_to(holdfast, described, file)
    return agent.id


async def _require_made(holdfast: "House", ref: str) -> None:
    """Say how a well-known program becomes an agent, where it has not become one."""
    from holdfast.acp.client.presets import PRESETS

    if ref in PRESETS and await _stored(holdfast, ref) is None:
        raise NotFound(
            Code.AGENT_NOT_FOUND,
            f"There is no agent {ref} yet; `holdfast agents create --preset {ref}` makes it.",
        )


def file_named(ref: str, folder: Path | None, home: Path) -> Path | None:
    """Return the file that a reference means, if it means one of this machine's."""
    from holdfast.parsing.agent_files import find_agent_file

    if folder is None and not _is_path(ref):
        return None
    return find_agent_file(ref, working_dir=folder or Path.cwd(), home=home)


def describing(ref: str, file: Path) -> "AgentFile":
    """Return the agent of a file; one that is found by a name has to bear it."""
    from holdfast.cli.agent_files import described_in

    described = described_in(file)
    if not _is_path(ref) and described.slug != ref:
        told = f"{file} describes the agent {described.slug}, and is named after {ref}."
        raise Invalid(Code.AGENT_INVALID, told, {"file": str(file), "fields": ["id"]})
    return described


async def kept(holdfast: "House", described: "AgentFile") -> Agent:
    """Return a stored agent that is what a file says; another of its name stays as it is."""
    found = await _same(holdfast, described)
    if found is not None:
        return found
    fields = {**described.fields(), "grant": None}
    if await _stored(holdfast, described.slug) is not None:
        fields["slug"] = _own_slug(described)
    return await holdfast.agents.create(holdfast.owner, fields)


async def _agreed_to(holdfast: "House", described: "AgentFile", file: Path) -> Agent:
    found = await _same(holdfast, described)
    if found is None:
        raise Denied(
            Code.CONSENT_REQUIRED,
            f"This folder brings an agent {described.slug} along that you have not agreed to; "
            f"read {file}, and `holdfast agents import {file}` agrees to what it says now.",
            {"file": str(file), "agent": described.slug},
        )
    return found


async def _same(holdfast: "House", described: "AgentFile") -> Agent | None:
    """Return the stored agent that says what the file says, under its name or the longer one."""
    for slug in (described.slug, _own_slug(described)):
        agent = await _stored(holdfast, slug)
        if agent is not None and await _says(holdfast, agent, described):
            return agent
    return None


async def _says(holdfast: "House", agent: Agent, described: "AgentFile") -> bool:
    from holdfast.domain.agents import file_form
    from holdfast.parsing.agent_files import build_agent

    if not isinstance(agent.runtime, LlmRuntime) or not agent.system_prompt:
        return False
    refs = {model.id: model.ref for model in await holdfast.models.list()}
    # One that leaves its model open says the default, and a file has to say something.
    form = file_form(agent, refs, default=holdfast.config.default_model)
    try:
        told = build_agent(form, where=agent.slug)
    except Invalid:
        return False
    return replace(told, slug=described.slug) == described


async def _stored(holdfast: "House", slug: str) -> Agent | None:
    try:
        return await holdfast.agents.get(holdfast.owner, slug)
    except NotFound:
        return None


def _own_slug(described: "AgentFile") -> str:
    """Return the name of an agent whose short name somebody else has: the same for the same."""
    digest = hashlib.sha256(msgspec.json.encode(described, order="sorted")).hexdigest()
    return f"{described.slug[:240]}-{digest[:8]}"


def _is_path(ref: str) -> bool:
    return "/" in ref or "\\" in ref or ref.endswith((".yaml", ".yml"))
