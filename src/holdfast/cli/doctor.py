"""`holdfast doctor`: checks the home folder, the configuration and the store."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from msgspec.structs import replace

from holdfast import __version__
from holdfast.cli.command import command
from holdfast.cli.errors import FINDINGS
from holdfast.cli.options import flag
from holdfast.cli.output import Printer
from holdfast.cli.secrets import secrets_here
from holdfast.config import Config
from holdfast.domain.agents import AcpRuntime, Agent, ExternalRuntime
from holdfast.domain.errors import Code, HoldfastError
from holdfast.domain.events import ToolEnded, ToolStarted, name_of
from holdfast.domain.ids import LOCAL_OWNER
from holdfast.domain.messages import ResultStatus
from holdfast.domain.queries import AgentQuery, SessionQuery
from holdfast.llm.providers import missing_extra
from holdfast.observations.snapshots import rebuild_snapshots
from holdfast.open_store import STORE_NAME
from holdfast.ports.store import Store, Tx
from holdfast.search.service import Search
from holdfast.store.database_url import shown_url
from holdfast.store.sqlite import checks as sqlite_checks
from holdfast.store.sqlite.encryption import KeySources, load_store_key
from holdfast.store.sqlite.files import file_system_of, unusable_path_error
from holdfast.store.sqlite.migrate import newest
from holdfast.tools.files.tools import file_weaknesses
from holdfast.wiring import require_default_model

app = typer.Typer()
_AGENTS_MOST: Final = 1_000
_SESSIONS_AT_ONCE: Final = 100
_CALL_EVENTS: Final = (name_of(ToolStarted), name_of(ToolEnded))
_RAN: Final = frozenset({ResultStatus.OK, ResultStatus.ERROR})
_EVENTS_MISSING: Final = "events_missing"
_SHOWN_MOST: Final = 5
# What to do about a code whose messages only say what is wrong.
_REMEDIES: Final[Mapping[str, str]] = {
    Code.CORRUPT_STORE: "Stop every process of this home, copy the home, and restore a backup "
    "with `holdfast restore FILE`. Without one: `holdfast doctor --rebuild` recreates derived "
    "data, `holdfast salvage FILE` recovers a store whose log is damaged, and `holdfast sessions "
    "verify` shows which sessions can still be exported.",
}
_COMPANIONS: Final = ("-wal", "-anchor", "-reserve")
_NO_STORE: Final = "none yet; created with the first session"
_WRAPPED: Final = (
    "agent programs are run by the command of acp.wrap, and not confined by Holdfast itself"
)
_BENEATH: Final = "the kernel resolves paths beneath their folder (openat2)"


@command(app, "doctor", only_here=True)
async def examine(
    printer: Printer,
    *,
    rebuild: Annotated[
        bool,
        flag(
            "First rebuild all derived data: histories, timelines and the search index.",
            "--rebuild",
        ),
    ] = False,
) -> int:
    """Check the home folder and the store.

    Exits with 1 if a problem is found.
    """
    config = printer.settings.load()
    facts, findings = _check_files(config)
    facts |= await _check_tools(config)
    # Opening a store that does not exist would create one.
    if facts["store"] is not None:
        await _check_store(config, facts, findings, rebuild=rebuild)
    else:
        findings += [*_check_remains(config), *_check_writable(config)]
    # One fault is met by several checks.
    findings = [each for at, each in enumerate(findings) if each not in findings[:at]]
    codes = {each["code"] for each in findings}
    remedies = {code: text for code, text in _REMEDIES.items() if code in codes}
    report = {**facts, "findings": findings, "remedies": remedies}
    if printer.is_json:
        printer.document(report)
    else:
        _print_report(printer, facts, findings)
        _print_findings(printer, findings, remedies)
    return FINDINGS if findings else 0


def _check_files(config: Config) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Check the files before the store is opened, because opening it repairs their modes."""
    facts: dict[str, Any] = {
        "version": __version__,
        "home": str(config.home),
        "store": _store(config),
        "file_system": file_system_of(_nearest_existing(config.home)),
        "sqlite": sqlite_checks.library_version() if config.database_url is None else None,
        "key_source": None,
        "schema": None,
        "newest_schema": newest(),
        "model": config.default_model,
        "unsettled": [],
        "rebuilt": None,
        "not_guarded": [],
    }
    findings = [
        _finding("open_to_others", door) for door in sqlite_checks.open_permissions(config.home)
    ]
    kind = sqlite_checks.unsuitable_file_system(_nearest_existing(config.home))
    if kind is not None and config.database_url is None:
        text = (
            f"The home folder is on a {kind} file system, which cannot store data safely; "
            "move it to a local disk."
        )
        findings.append(_finding(Code.UNSUITABLE_FILE_SYSTEM, text))
    try:
        require_default_model(config)
    except HoldfastError as error:
        findings.append(_finding(error.code, error.message))
    if (extra := missing_extra(config.default_model.partition(":")[0])) is not None:
        text = (
            f"{config.default_model} needs a package that is not installed; install "
            f"holdfast[{extra}], in a checkout with `pip install '.[{extra}]'`."
        )
        findings.append(_finding("package_missing", text))
    return facts, findings


def _store(config: Config) -> str | None:
    """Return where the store is; None if there is none yet."""
    if config.database_url is not None:
        return shown_url(config.database_url)
    store = config.home / STORE_NAME
    return str(store) if store.exists() else None


async def _check_tools(config: Config) -> dict[str, Any]:
    """Check which tools agents can use here, and how they are sandboxed."""
    from holdfast.acp.client.presets import detect
    from holdfast.process.launcher import Launcher

    weak = file_weaknesses()
    strength = await Launcher().strength()
    chat = config.chat
    return {
        "safety": {
            "active": [*([] if weak else [_BENEATH]), *strength.active],
            "weaker": [*weak, *strength.weaker, *([_WRAPPED] if config.acp.wrap else [])],
        },
        "allowed": {
            "approval": config.approval.value,
            "fs_scope": chat.fs_scope.value,
            "extra_roots": list(map(str, chat.extra_roots)),
            "commands": list(chat.allowed_commands),
            "command_globs": list(chat.allowed_command_globs),
            "domains": list(chat.allowed_domains),
        },
        # Only names, so that no key appears on the screen.
        "keys": [
            {"account": each.account, "origin": each.origin} for each in await secrets_here().list()
        ],
        "programs": [
            {"preset": each.preset, "version": each.version, "path": each.path}
            for each in await detect(os.environ)
            if each.path is not None
        ],
    }


def _check_remains(config: Config) -> list[dict[str, str]]:
    """Return a finding if the store is missing, but not the files that belong to it."""
    store = config.home / STORE_NAME
    left = [name for end in _COMPANIONS if (config.home / (name := f"{STORE_NAME}{end}")).exists()]
    if not left:
        return []
    text = (
        f"{store} is missing, but {', '.join(left)} is there. Put the file back if it was moved, "
        "or restore a backup."
    )
    return [_finding(Code.CORRUPT_STORE, text)]


def _check_writable(config: Config) -> list[dict[str, str]]:
    """Return problems that would prevent the first session from being written."""
    from holdfast import keychain

    found = []
    if (text := unusable_path_error(config.home)) is not None:
        found.append(_finding(Code.STORE_UNWRITABLE, text))
    sources = KeySources(
        environment=os.environ.get("HOLDFAST_KEY"),
        read_keychain=keychain.read,
        keep_in_keychain=keychain.write,
        encryption=config.encryption,
    )
    try:
        # As if a store existed: for a new one, a key would be created.
        load_store_key(config.home, sources, is_new=False)
    except HoldfastError as error:
        if error.code is not Code.STORE_KEY_MISSING:
            found.append(_finding(error.code, error.message))
    return found


async def _check_store(
    config: Config, facts: dict[str, Any], findings: list[dict[str, str]], *, rebuild: bool
) -> None:
    """Open the store and check it completely; a failure to open is a finding."""
    from holdfast.open_store import open_any_store

    try:
        source, store = await open_any_store(config)
    except HoldfastError as error:
        findings.append(_finding(error.code, error.message))
        # A store with another schema version is refused with its number; other errors have none.
        facts["schema"] = error.details.get("store")
        return
    facts["key_source"] = source
    # An open store has the newest schema: every other version is refused.
    facts["schema"] = facts["newest_schema"]
    try:
        if rebuild:
            facts["rebuilt"] = await _rebuild(store)
        findings += [_finding(Code.CORRUPT_STORE, fault) for fault in await store.check()]
        findings += [_finding(_EVENTS_MISSING, each) for each in await store.missing_events()]
        findings += await _check_imports(config, store)
        heads = await store.read(lambda tx: tx.sessions.unsettled())
        facts["unsettled"] = [head.session_id for head in heads]
        facts["safety"]["weaker"] += await _list_unconfined(store)
        await store.require_writable()
        # Damaged events, which were reported, say nothing.
        if not findings:
            facts["not_guarded"] = await _list_unguarded(store)
    except HoldfastError as error:
        findings.append(_finding(error.code, error.message))
    finally:
        await store.close()


async def _list_agents(store: Store) -> list[Agent]:
    query = AgentQuery(owner=LOCAL_OWNER, limit=_AGENTS_MOST)
    return await store.read(lambda tx: tx.agents.page(query))


async def _list_unguarded(store: Store) -> list[dict[str, str]]:
    """Return the tools that a framework has run without a guard: only their end was announced."""
    found: set[tuple[str, str]] = set()
    for agent in await _list_agents(store):
        runtime = agent.runtime
        if not isinstance(runtime, ExternalRuntime):
            continue
        query = SessionQuery(owner=LOCAL_OWNER, agent_id=agent.id, limit=_SESSIONS_AT_ONCE)
        while page := await store.read(partial(_ends_alone, query)):
            found |= {(runtime.framework, tool) for tools in page for tool in tools}
            query = replace(query, offset=query.offset + len(page))
    return [{"framework": framework, "tool": tool} for framework, tool in sorted(found)]


async def _ends_alone(query: SessionQuery, tx: Tx) -> list[set[str]]:
    """Return, by session, the tools that have an outcome and were never started."""
    found = []
    for _, state in await tx.sessions.page(query):
        events = await tx.events.since(state, 0, _CALL_EVENTS)
        payloads = [each.payload for each in events]
        started = {each.call_id for each in payloads if isinstance(each, ToolStarted)}
        ended = (each for each in payloads if isinstance(each, ToolEnded))
        ran = (each for each in ended if each.status in _RAN)
        found.append({each.name for each in ran if each.call_id not in started})
    return found


async def _list_unconfined(store: Store) -> list[str]:
    """Return the local agents whose programs were excepted from the sandbox."""
    return [
        f"agent {agent.slug} is not confined: its option confined is false"
        for agent in await _list_agents(store)
        if isinstance(agent.runtime, AcpRuntime) and agent.runtime.options.get("confined") is False
    ]


async def _rebuild(store: Store) -> dict[str, Any]:
    """Rebuild all derived data, and report where it differed."""
    # The index first: it can be rebuilt even if observations are damaged.
    words, history = await Search(store).rebuild(), await rebuild_snapshots(store)
    return {
        "entities": history.entities,
        "documents": words.documents,
        "differences": [*history.differences, *words.differences],
    }


async def _check_imports(config: Config, store: Store) -> list[dict[str, str]]:
    """Check whether all blocks of the configured folder were imported."""
    from holdfast.wiring import blocks_left

    if config.block_zones is None:
        return []
    count = await blocks_left(store, config.block_zones)
    text = (
        f"{count} agent blocks have a snapshot that is in no zone and no archive; "
        f"import them with `holdfast import block-zones {config.block_zones}`."
    )
    return [_finding("blocks_left", text)] if count else []


def _print_report(printer: Printer, facts: dict[str, Any], findings: list[dict[str, str]]) -> None:
    waiting = facts["unsettled"]
    is_missing = any(each["code"] == Code.CORRUPT_STORE for each in findings)
    printer.record(
        None,
        {
            "Holdfast": facts["version"],
            "home": facts["home"],
            "store": facts["store"] or ("missing" if is_missing else _NO_STORE),
            **_file_summary(facts),
            "schema": facts["schema"],
            "open turns": f"in {len(waiting)} sessions" if waiting else "none",
            "model": facts["model"],
            **_tools_summary(facts),
        },
    )
    if (notice := printer.settings.unnamed_model()) is not None:
        printer.line(notice)
    for session in waiting:
        printer.line(
            f"  {session} has a waiting turn; a server runs it, or `holdfast chat "
            f"--resume {session}`"
        )
    for kind in ("active", "weaker"):
        for text in facts["safety"][kind]:
            printer.line(f"{'safe' if kind == 'active' else 'weaker'}: {text}")
    for each in facts["not_guarded"]:
        printer.line(f"not guarded: {each['framework']} ran {each['tool']} without a durable call")
    rebuilt = facts["rebuilt"]
    if rebuilt is not None:
        counted = f"{rebuilt['entities']} histories and {rebuilt['documents']} documents"
        printer.line(f"rebuilt: {counted}")
        for text in rebuilt["differences"]:
            printer.line(f"repaired: {text}")


def _print_findings(
    printer: Printer, findings: list[dict[str, str]], remedies: Mapping[str, str]
) -> None:
    """Print the first findings of each code, and how each code is remedied."""
    for code in dict.fromkeys(each["code"] for each in findings):
        texts = [each["message"] for each in findings if each["code"] == code]
        for text in texts[:_SHOWN_MOST]:
            printer.line(f"problem: {text}")
        if (left := len(texts) - _SHOWN_MOST) > 0:
            printer.line(f"problem: {left} more of {code}; `holdfast doctor --json` lists all")
    for text in remedies.values():
        printer.line(f"remedy: {text}")
    printer.line("No problems found." if not findings else f"{len(findings)} found.")


def _tools_summary(facts: dict[str, Any]) -> dict[str, str]:
    allowed = facts["allowed"]
    commands = [*allowed["commands"], *allowed["command_globs"]]
    keys = sorted({each["account"] for each in facts["keys"]})
    programs = [f"{each['preset']} {each['version'] or ''}".strip() for each in facts["programs"]]
    return {
        "approval": allowed["approval"],
        "file scope": ", ".join([allowed["fs_scope"], *allowed["extra_roots"]]),
        "commands": ", ".join(commands) or "none",
        "domains": ", ".join(allowed["domains"]) or "none",
        "keys": ", ".join(keys) or "none",
        "programs": ", ".join(programs)
        or "none; `holdfast agents detect` shows how to install some",
    }


def _file_summary(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts about a store that is a file; a database server manages its own."""
    if facts["sqlite"] is None:
        return {}
    return {
        "file system": facts["file_system"] or "unknown",
        "SQLite": facts["sqlite"],
        "key": facts["key_source"],
    }


def _nearest_existing(path: Path) -> Path:
    """Return the path, or its nearest existing parent."""
    return next((each for each in (path, *path.parents) if each.exists()), path)


def _finding(code: str, message: str) -> dict[str, str]:
    return {"code": str(code), "message": message}
