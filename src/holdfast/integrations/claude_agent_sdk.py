"""Sessions of the Claude Agent SDK in Holdfast, and hooks that let a tool take effect once.

`HoldfastSessionStore` is a `SessionStore` of the SDK with all its methods. `options` sets it with
the hooks of `hf_hooks`, so that each tool is on disk before the program runs it.
"""

import json
import warnings
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, SessionStore, fold_session_summary
from claude_agent_sdk import __version__ as installed

from holdfast.domain.canonical_json import digest
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import ResultStatus
from holdfast.domain.recordings import ForeignRecord, encode_plain
from holdfast.domain.tools import Effect
from holdfast.integrations.bridge import Bridge
from holdfast.integrations.calls import DurableAnswer, DurableCall, DurableResult
from holdfast.integrations.claude_entries import key_of, mapped
from holdfast.integrations.records import (
    ForeignEntry,
    ForeignWriter,
    Framework,
    require_version,
)

FRAMEWORK: Final = Framework(name="claude-agent-sdk", version=installed)
require_version(FRAMEWORK, "0.2.182", "0.3", extra="claude-agent-sdk")

ENTRIES: Final = "entries"
# An entry whose id is known with another content: kept, and not loaded.
_REPEATED: Final = "repeated"
# A hook waits for the disk, and a call that runs already for its result.
_HOOK_SECONDS: Final = 600.0


class HoldfastSessionStore(SessionStore):  # type: ignore[misc]
    """Transcripts of the SDK in a Holdfast, open in this process."""

    def __init__(self, hf: Any, *, agent: str = "claude-agent-sdk") -> None:
        """`agent` is the name under which the sessions are listed."""
        self.bridge = Bridge(hf, "HoldfastSessionStore")
        self._agent = agent

    async def append(self, key: Mapping[str, Any], entries: list[Any]) -> None:
        """Append entries in one commit; one whose id and content are known is left out."""
        if not entries:
            return
        raws = [encode_plain(entry, "An entry of a transcript") for entry in entries]

        async def append() -> None:
            session_id = await self.opened(key)
            is_asking = False

            async def write(writer: ForeignWriter) -> None:
                nonlocal is_asking
                fresh = []
                for entry, raw in zip(entries, raws, strict=True):
                    found = mapped(entry)
                    if await self._is_known(writer, entry, raw):
                        continue
                    fresh.append(entry)
                    record = ForeignEntry(
                        kind=str(entry.get("type", "")),
                        raw=raw,
                        key=key_of(entry),
                        drafts=found.drafts,
                    )
                    await writer.add(ENTRIES, [record])
                    # Attachments come between the text and the calls of an answer.
                    if entry.get("type") == "assistant":
                        is_asking = found.asks
                    if found.cost is not None:
                        await writer.charge(found.cost)
                    if found.title is not None:
                        writer.writer.update(title=writer.writer.redact(found.title)[:255])
                await self._summarise(writer, key, fresh)
                if not is_asking:
                    writer.settle()

            await self._parts.sessions.write(session_id, write, settles=False)

        await self.bridge.run(append)

    async def load(self, key: Mapping[str, Any]) -> list[Any] | None:
        """Return the entries of a transcript; `None` if it was never written."""

        async def load() -> list[ForeignRecord] | None:
            session_id = await self._find_session(key)
            if session_id is None:
                return None
            return list(await self._parts.sessions.live(session_id, ENTRIES))

        records = await self.bridge.run(load)
        if records is None:
            return None
        return [json.loads(each.raw) for each in records if each.kind != _REPEATED]

    async def list_sessions(self, project_key: str) -> list[Any]:
        """Return the sessions of a project with the time of their last write."""
        return [
            {"session_id": session_id, "mtime": state["mtime"]}
            for session_id, state in await self._states(project_key)
        ]

    async def list_session_summaries(self, project_key: str) -> list[Any]:
        """Return the summaries of the sessions of a project."""
        return [
            {"session_id": session_id, **state}
            for session_id, state in await self._states(project_key)
        ]

    async def delete(self, key: Mapping[str, Any]) -> None:
        """Delete a transcript with those of its subagents; with a subpath only that one."""

        async def delete() -> None:
            names = [key]
            if not key.get("subpath"):
                names += [{**key, "subpath": each} for each in await self._subkeys(key)]
            for each in names:
                session_id = await self._parts.sessions.find(FRAMEWORK.name, native_id(each))
                if session_id is not None:
                    await self._parts.sessions.delete(session_id)

        await self.bridge.run(delete)

    async def list_subkeys(self, key: Mapping[str, Any]) -> list[str]:
        """Return the subpaths of a session: the transcripts of its subagents."""
        return await self.bridge.run(lambda: self._subkeys(key))

    async def opened(self, key: Mapping[str, Any]) -> SessionId:
        """Return the Holdfast session of a transcript; creates it if it is not there."""
        metadata = {}
        if key.get("subpath"):
            parent = await self.opened({**key, "subpath": None})
            metadata = {"parent": parent}
        found: SessionId = await self._parts.sessions.open(
            FRAMEWORK, native_id(key), agent=self._agent, metadata=metadata
        )
        return found

    @property
    def _parts(self) -> Any:
        return self.bridge.parts

    async def _find_session(self, key: Mapping[str, Any]) -> SessionId | None:
        found: SessionId | None = await self._parts.sessions.find(FRAMEWORK.name, native_id(key))
        if found is None:
            return None
        # One that only its subagents have written to.
        is_empty = not (await self._parts.sessions.live(found, ENTRIES)).last
        return None if is_empty else found

    async def _subkeys(self, key: Mapping[str, Any]) -> list[str]:
        start = native_id(key)[:-1] + ","
        named = await self._parts.sessions.beginning(FRAMEWORK.name, start)
        return [json.loads(each.native_id)[2] for each in named]

    async def _states(self, project_key: str) -> list[tuple[str, dict[str, Any]]]:
        start = native_id({"project_key": project_key, "session_id": ""}).removesuffix('""]')
        named = await self.bridge.run(lambda: self._parts.sessions.beginning(FRAMEWORK.name, start))
        mains = [(json.loads(each.native_id), each.state) for each in named]
        return [
            (parts[1], json.loads(state)) for parts, state in mains if len(parts) == 2 and state
        ]

    async def _is_known(self, writer: ForeignWriter, entry: Any, raw: bytes) -> bool:
        """Return whether an entry is stored; one with other content is kept beside the first."""
        key = key_of(entry)
        known = await writer.records(ENTRIES, key) if key is not None else []
        if not known:
            return False
        if all(json.loads(each.raw) != entry for each in known):
            await writer.add(ENTRIES, [ForeignEntry(kind=_REPEATED, raw=raw, key=key)])
        return True

    async def _summarise(
        self, writer: ForeignWriter, key: Mapping[str, Any], entries: list[Any]
    ) -> None:
        """Keep the summary that the SDK makes of a session, with the time of the commit."""
        state = await writer.state()
        before = {"session_id": key["session_id"], **json.loads(state)} if state else None
        mtime = await writer.next_time()
        data: Any = {}
        if not key.get("subpath"):
            data = fold_session_summary(before, key, entries)["data"]
        await writer.set_state(encode_plain({"mtime": mtime, "data": data}, "A summary"), mtime)


def native_id(key: Mapping[str, Any]) -> str:
    """Return the id of a transcript: project, session, and the subagent's path if it has one."""
    parts = [key["project_key"], key["session_id"], key.get("subpath")]
    return json.dumps([each for each in parts if each is not None], separators=(",", ":"))


class ClaudeHooks:
    """Hooks that record a tool before the program runs it, and refuse one that may have run."""

    def __init__(self, store: HoldfastSessionStore, *, effects: Mapping[str, str]) -> None:
        self._store = store
        self._effects = effects
        self._open: dict[str, tuple[SessionId, Any]] = {}

    async def before(self, given: Any, tool_use_id: str | None, _: Any) -> dict[str, Any]:
        """Start a call on disk; a call that is known already is refused with what is known."""
        session_id = await self._session_of(given)
        call = DurableCall(
            id=str(tool_use_id or given["tool_use_id"]),
            name=given["tool_name"],
            arguments=given["tool_input"],
            effect=Effect(self._effects.get(given["tool_name"], "unsafe")),
        )
        calls = self._store.bridge.parts.calls
        found = await self._store.bridge.run(lambda: calls.start(session_id, call, lambda: None))
        if not isinstance(found, DurableAnswer):
            self._open[call.id] = session_id, found
            return {}
        return {
            "hookSpecificOutput": {
                "hookEventName": "PreToolUse",
                "permissionDecision": "deny",
                "permissionDecisionReason": _known(found),
            }
        }

    async def after(self, given: Any, tool_use_id: str | None, _: Any) -> dict[str, Any]:
        """Record the result of a call."""
        response = given.get("tool_response")
        raw = encode_plain(response, "The result of a tool")
        await self._end(given, tool_use_id, DurableResult(raw=raw, value=response))
        return {}

    async def failed(self, given: Any, tool_use_id: str | None, _: Any) -> dict[str, Any]:
        """Record that a call has failed."""
        text = str(given.get("error") or "The tool has failed.")
        raw = encode_plain(text, "The error of a tool")
        # What was stopped in the middle may have taken effect.
        result = None if given.get("is_interrupt") else DurableResult(raw=raw, error=text)
        await self._end(given, tool_use_id, result)
        return {}

    def key_of(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Return the idempotency key of the one open call with these arguments.

        A tool in this process gets its arguments only, and not the id of its call. The program
        calls it `mcp__SERVER__NAME`.
        """
        wanted = digest(dict(arguments))
        keys = [
            permit.call.idempotency_key
            for _, permit in self._open.values()
            if f"__{permit.call.name}".endswith(f"__{name}")
            and digest(permit.call.arguments) == wanted
        ]
        return keys[0] if len(keys) == 1 else None

    def matchers(self) -> dict[Any, list[HookMatcher]]:
        """Return the hooks for the options of the SDK."""
        return {
            "PreToolUse": [
                HookMatcher(hooks=[self.before], timeout=_HOOK_SECONDS, on_failure="block")
            ],
            "PostToolUse": [HookMatcher(hooks=[self.after])],
            "PostToolUseFailure": [HookMatcher(hooks=[self.failed])],
        }

    async def _end(self, given: Any, tool_use_id: str | None, result: Any) -> None:
        known = self._open.pop(str(tool_use_id or given["tool_use_id"]), None)
        if known is None:
            return
        session_id, permit = known
        calls = self._store.bridge.parts.calls
        await self._store.bridge.run(lambda: calls.end(session_id, permit, result))

    async def _session_of(self, given: Any) -> SessionId:
        path = PurePath(given.get("transcript_path") or "")
        if path.suffix != ".jsonl":
            raise Invalid(
                Code.NO_SESSION, "The hook was called without a transcript; keep sessions on."
            )
        key = {"project_key": path.parent.name, "session_id": path.stem}
        return await self._store.bridge.run(lambda: self._store.opened(key))


def hf_hooks(
    store: HoldfastSessionStore, *, effects: Mapping[str, str] | None = None
) -> ClaudeHooks:
    """Return hooks that guard every tool; `effects` says of tools what running them twice does."""
    return ClaudeHooks(store, effects=effects or {})


def options(
    hf: Any,
    *,
    agent: str = "claude-agent-sdk",
    effects: Mapping[str, str] | None = None,
    **given: Any,
) -> ClaudeAgentOptions:
    """Return options of the SDK with a store and hooks of Holdfast; `given` are all the others."""
    store = HoldfastSessionStore(hf, agent=agent)
    if given.get("session_store_flush", "eager") != "eager":
        warnings.warn(
            "With session_store_flush='batched' a kill loses the turn in the store; leave it out.",
            stacklevel=2,
        )
    given.setdefault("session_store_flush", "eager")
    hooks: dict[Any, list[HookMatcher]] = dict(given.pop("hooks", None) or {})
    for event, matchers in hf_hooks(store, effects=effects).matchers().items():
        hooks[event] = [*matchers, *hooks.get(event, [])]
    return ClaudeAgentOptions(session_store=store, hooks=hooks, **given)


def _known(answer: DurableAnswer) -> str:
    if answer.raw is None or answer.status is ResultStatus.UNKNOWN:
        return answer.text
    found = json.loads(answer.raw)
    text = found if isinstance(found, str) else json.dumps(found)
    return f"This call has run already and was not run again. Its result was: {text}"
