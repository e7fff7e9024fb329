"""Checkpoints of LangGraph in Holdfast, and tools whose effects happen once.

`HoldfastSaver` is a checkpoint saver: a thread is a session. `saver.guard` and `saver.aguard` are
the wrappers of a `ToolNode` that make its tools durable.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version as version_of
from typing import Any, Final

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Conflict, NotFound
from holdfast.domain.ids import SessionId, SessionKey
from holdfast.domain.messages import Notice, NoticeCode, Role
from holdfast.domain.tools import Effect
from holdfast.integrations import langgraph_state as state
from holdfast.integrations.bridge import Bridge
from holdfast.integrations.calls import OnUnknown
from holdfast.integrations.langgraph_calls import DurableNodes
from holdfast.integrations.langgraph_messages import show_messages
from holdfast.integrations.langgraph_state import FoundCheckpoint, PutRequest, StoredValue
from holdfast.integrations.records import ForeignWriter, Framework, require_version
from holdfast.ports.store import Tx
from holdfast.store.graph_checkpoints import GraphCheckpoint, GraphWrite, Typed

FRAMEWORK: Final = Framework(name="langgraph", version=version_of("langgraph-checkpoint"))
require_version(FRAMEWORK, "4.3", "5", extra="langgraph")

Config = Any


class HoldfastSaver(BaseCheckpointSaver[str], DurableNodes):  # type: ignore[misc]
    """A checkpoint saver whose threads are sessions of a Holdfast, open in this process."""

    def __init__(
        self,
        hf: Any,
        *,
        agent: str = "langgraph",
        serde: SerializerProtocol | None = None,
        messages_key: str = "messages",
        map_messages: bool | None = None,
        effects: Mapping[str, Effect | str] | None = None,
        on_unknown: OnUnknown = "result",
        allow_unsaved: bool = False,
    ) -> None:
        """`agent` is the name under which the sessions are listed.

        The messages in the channel `messages_key` become those of the session, unless the
        serializer encrypts. `effects` says by the name of a tool what running it twice would do.
        """
        super().__init__(serde=serde)
        self.bridge = Bridge(hf, "HoldfastSaver")
        self._agent = agent
        self._is_encrypted = isinstance(serde, EncryptedSerializer)
        is_mapping = not self._is_encrypted if map_messages is None else map_messages
        self._messages_key = messages_key if is_mapping else None
        self.effects = {name: Effect(effect) for name, effect in (effects or {}).items()}
        self.on_unknown = on_unknown
        self.allow_unsaved = allow_unsaved
        # Shared by the copies that `with_allowlist` makes.
        self._known: dict[str, SessionId] = {}
        self._lists = state.KnownLists()

    def get_next_version(self, current: Any, channel: None) -> str:
        """Return a version that no other branch has."""
        number = 0 if current is None else int(str(current).split(".", 1)[0])
        return f"{number + 1:032}.{random.getrandbits(53):016}"

    async def aget_tuple(self, config: Config) -> CheckpointTuple | None:
        """Return a checkpoint, or the newest one of a thread."""
        return self._tuple(await self.bridge.run(lambda: self._get(config)), config)

    def get_tuple(self, config: Config) -> CheckpointTuple | None:
        """Return a checkpoint, or the newest one of a thread."""
        return self._tuple(self.bridge.run_sync(lambda: self._get(config)), config)

    async def alist(
        self,
        config: Config,
        *,
        filter: dict[str, Any] | None = None,
        before: Config = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Return the checkpoints of one thread or of all, the newest first."""
        chosen = await self.bridge.run(lambda: self._choose(config, filter, before, limit))
        for found in chosen:
            yield self._build_tuple(found)

    def list(
        self,
        config: Config,
        *,
        filter: dict[str, Any] | None = None,
        before: Config = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Return the checkpoints of one thread or of all, the newest first."""
        chosen = self.bridge.run_sync(lambda: self._choose(config, filter, before, limit))
        return map(self._build_tuple, chosen)

    async def aput(
        self, config: Config, checkpoint: Any, metadata: Any, new_versions: Mapping[str, Any]
    ) -> Config:
        """Store a checkpoint, and the messages that are new in it."""
        request, messages = self._request(config, checkpoint, metadata, new_versions)
        await self.bridge.run(lambda: self._put(config, request, messages))
        return _config(_thread(config), request.namespace, request.id)

    def put(
        self, config: Config, checkpoint: Any, metadata: Any, new_versions: Mapping[str, Any]
    ) -> Config:
        """Store a checkpoint, and the messages that are new in it."""
        request, messages = self._request(config, checkpoint, metadata, new_versions)
        self.bridge.run_sync(lambda: self._put(config, request, messages))
        return _config(_thread(config), request.namespace, request.id)

    async def aput_writes(
        self,
        config: Config,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task has written; its checkpoint may come later."""
        made = self._writes(writes, task_id, task_path)
        await self.bridge.run(lambda: self._put_writes(config, made))

    def put_writes(
        self,
        config: Config,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task has written; its checkpoint may come later."""
        made = self._writes(writes, task_id, task_path)
        self.bridge.run_sync(lambda: self._put_writes(config, made))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread and its session; the id may be used for a new one."""
        await self.bridge.run(lambda: self._delete(str(thread_id)))

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread and its session; the id may be used for a new one."""
        self.bridge.run_sync(lambda: self._delete(str(thread_id)))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints of runs; the messages stay."""
        await self.bridge.run(lambda: self._delete_for_runs(run_ids))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints of runs; the messages stay."""
        self.bridge.run_sync(lambda: self._delete_for_runs(run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints of a thread to one that has none."""
        await self.bridge.run(lambda: self._copy(str(source_thread_id), str(target_thread_id)))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints of a thread to one that has none."""
        self.bridge.run_sync(lambda: self._copy(str(source_thread_id), str(target_thread_id)))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove all checkpoints, or all but the newest of each namespace; the messages stay."""
        await self.bridge.run(lambda: self._prune(thread_ids, strategy))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove all checkpoints, or all but the newest of each namespace; the messages stay."""
        self.bridge.run_sync(lambda: self._prune(thread_ids, strategy))

    async def aget_delta_channel_history(
        self, *, config: Config, channels: Sequence[str]
    ) -> Mapping[str, Any]:
        """Return what the checkpoints before one have written to channels."""
        found = await self.bridge.run(lambda: self._ancestors(config, channels))
        return self._history(found, channels)

    def get_delta_channel_history(
        self, *, config: Config, channels: Sequence[str]
    ) -> Mapping[str, Any]:
        """Return what the checkpoints before one have written to channels."""
        found = self.bridge.run_sync(lambda: self._ancestors(config, channels))
        return self._history(found, channels)

    @property
    def _parts(self) -> Any:
        return self.bridge.parts

    async def open_thread(self, thread_id: str) -> SessionId:
        """Return the session of a thread, which may be new; runs on the loop of the store."""
        found = self._known.get(thread_id)
        if found is None:
            found = self._known[thread_id] = await self._parts.sessions.open(
                FRAMEWORK, thread_id, agent=self._agent
            )
        return found

    async def _find(self, thread_id: str) -> SessionId | None:
        found = self._known.get(thread_id)
        if found is None:
            found = await self._parts.sessions.find(FRAMEWORK.name, thread_id)
            if found is not None:
                self._known[thread_id] = found
        return found

    async def _in_thread(self, thread_id: str, work: Callable[[SessionId], Awaitable[Any]]) -> Any:
        """Run work with the session of a thread, a new one if it was deleted meanwhile."""
        try:
            return await work(await self.open_thread(thread_id))
        except NotFound:
            self._known.pop(thread_id, None)
            return await work(await self.open_thread(thread_id))

    async def _read(self, thread_id: str, work: Callable[[Tx, SessionKey], Awaitable[Any]]) -> Any:
        """Read in the session of a thread; `None` if there is none."""
        session_id = await self._find(thread_id)
        if session_id is None:
            return None
        try:
            return await self._parts.sessions.read(session_id, work)
        except NotFound:
            self._known.pop(thread_id, None)
            return None

    def _load(self, body: state.Body) -> tuple[Any, Any]:
        return self.serde.loads_typed(body.checkpoint), self.serde.loads_typed(body.metadata)

    async def _row(self, tx: Tx, key: SessionKey, config: Config) -> GraphCheckpoint | None:
        namespace, id_ = _namespace(config), get_checkpoint_id(config)
        if id_ is None:
            return await tx.graphs.newest(key, namespace)
        row = await tx.graphs.one(key, namespace, id_)
        return None if row is None or row.hidden else row

    async def _get(self, config: Config) -> FoundCheckpoint | None:
        thread_id = _thread(config)

        async def read(tx: Tx, key: SessionKey) -> FoundCheckpoint | None:
            row = await self._row(tx, key, config)
            return None if row is None else await state.whole(tx, key, thread_id, row, self._load)

        found: FoundCheckpoint | None = await self._read(thread_id, read)
        return found

    async def _choose(
        self, config: Config, wanted: Mapping[str, Any] | None, before: Config, limit: int | None
    ) -> Sequence[FoundCheckpoint]:
        found: list[FoundCheckpoint] = []
        given = config["configurable"] if config else {}
        until = get_checkpoint_id(before) if before else None
        named = await self._parts.sessions.beginning(FRAMEWORK.name, "") if not config else ()
        for thread_id in [_thread(config)] if config else [each.native_id for each in named]:

            async def read(tx: Tx, key: SessionKey, thread_id: str = thread_id) -> None:
                before_it = len(found)
                for row in await tx.graphs.all(key):
                    if limit is not None and len(found) - before_it >= limit:
                        return
                    if row.hidden or not _is_chosen(row, given, until):
                        continue
                    metadata = self.serde.loads_typed(state.body_of(row).metadata)
                    if all(metadata.get(name) == each for name, each in (wanted or {}).items()):
                        found.append(await state.whole(tx, key, thread_id, row, self._load))

            await self._read(thread_id, read)
        # The newest of all threads together.
        return sorted(found, key=lambda each: each.row.id, reverse=True)[:limit]

    def _tuple(self, found: FoundCheckpoint | None, config: Config) -> CheckpointTuple | None:
        if found is None:
            return None
        made = self._build_tuple(found)
        return made._replace(config=config) if get_checkpoint_id(config) else made

    def _build_tuple(self, found: FoundCheckpoint) -> CheckpointTuple:
        row = found.row
        checkpoint, metadata = self._load(found.body)
        values = {channel: self._value(value) for channel, value in found.values.items()}
        parent = row.parent_id and _config(found.thread_id, row.namespace, row.parent_id)
        return CheckpointTuple(
            config=_config(found.thread_id, row.namespace, row.id),
            checkpoint={**checkpoint, "channel_values": values},
            metadata=metadata,
            parent_config=parent or None,
            pending_writes=[
                (write.task_id, write.channel, self.serde.loads_typed(write.value))
                for write in found.writes
            ],
        )

    def _value(self, stored: StoredValue) -> Any:
        if isinstance(stored, tuple):
            return self.serde.loads_typed(stored)
        return [self.serde.loads_typed(each) for each in stored]

    def _dump_value(self, value: Any) -> StoredValue:
        # An encrypted element never has the bytes that it had before.
        if type(value) is list and len(value) > 1 and not self._is_encrypted:
            return [self.serde.dumps_typed(each) for each in value]
        typed: Typed = self.serde.dumps_typed(value)
        return typed

    def _request(
        self, config: Config, checkpoint: Any, metadata: Any, new_versions: Mapping[str, Any]
    ) -> tuple[PutRequest, tuple[Any, Any] | None]:
        rest = {name: value for name, value in checkpoint.items() if name != "channel_values"}
        values, about = checkpoint["channel_values"], get_checkpoint_metadata(config, metadata)
        stored = {
            (channel, state.version_key(version)): self._dump_value(values[channel])
            for channel, version in new_versions.items()
            if channel in values
        }
        request = PutRequest(
            namespace=_namespace(config),
            id=checkpoint["id"],
            parent_id=get_checkpoint_id(config),
            run_id=about.get("run_id"),
            body=state.Body(self.serde.dumps_typed(rest), self.serde.dumps_typed(about)),
            values=stored,
        )
        return request, self._messages(request, values)

    def _messages(self, request: PutRequest, values: Mapping[str, Any]) -> tuple[Any, Any] | None:
        """Return the messages of a checkpoint, and their bytes, if they are new in it."""
        key = self._messages_key
        is_new = any(channel == key for channel, _ in request.values)
        said = values.get(key) if key is not None and is_new and not request.namespace else None
        if said is None or not _are_messages(said):
            return None
        stored = next(value for (channel, _), value in request.values.items() if channel == key)
        return said, self._typed(said, stored)

    def _typed(self, said: Sequence[Any], stored: StoredValue) -> Sequence[Typed]:
        """Return the bytes of each message."""
        return (
            stored if isinstance(stored, list) else [self.serde.dumps_typed(each) for each in said]
        )

    async def _put(
        self, config: Config, request: PutRequest, messages: tuple[Any, Any] | None
    ) -> None:
        async def put(tx: Tx, key: SessionKey) -> Any:
            return await state.put(tx, key, request, self._lists, self._load)

        async def say(writer: ForeignWriter) -> Any:
            lists = await put(writer.tx, writer.key)
            newest = await writer.tx.graphs.newest(writer.key, "")
            if messages is not None and newest is not None and newest.id == request.id:
                await show_messages(writer, *messages, self.effects)
            return lists

        async def write(session_id: SessionId) -> Any:
            if messages is None:
                return await self._parts.sessions.transact(session_id, put)
            return await self._parts.sessions.write(session_id, say)

        for each in await self._in_thread(_thread(config), write):
            self._lists.keep(*each)

    def _writes(
        self, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> Sequence[GraphWrite]:
        return [
            GraphWrite(
                task_id=task_id,
                number=WRITES_IDX_MAP.get(channel, number),
                channel=channel,
                value=self.serde.dumps_typed(value),
                task_path=task_path,
            )
            for number, (channel, value) in enumerate(writes)
        ]

    async def _put_writes(self, config: Config, writes: Sequence[GraphWrite]) -> None:
        namespace, id_ = _namespace(config), config["configurable"]["checkpoint_id"]

        async def put(tx: Tx, key: SessionKey) -> None:
            await tx.graphs.write(key, namespace, id_, writes)

        await self._in_thread(
            _thread(config), lambda session_id: self._parts.sessions.transact(session_id, put)
        )

    async def _delete(self, thread_id: str) -> None:
        session_id = await self._find(thread_id)
        self._known.pop(thread_id, None)
        if session_id is not None:
            try:
                await self._parts.sessions.delete(session_id)
            except NotFound:
                return

    async def _delete_for_runs(self, run_ids: Sequence[str]) -> None:
        chosen: dict[SessionId, set[tuple[str, str]]] = {}
        for run_id in run_ids:
            for session_id, namespace, id_ in await self._parts.sessions.graphs_of_run(str(run_id)):
                chosen.setdefault(session_id, set()).add((namespace, id_))
        for session_id, places in chosen.items():
            await self._drop(session_id, places.__contains__)

    async def _prune(self, thread_ids: Sequence[str], strategy: str) -> None:
        if strategy not in {"keep_latest", "delete"}:
            raise ValueError(f'The strategy is "keep_latest" or "delete", not {strategy!r}.')
        for thread_id in thread_ids:
            session_id = await self._find(str(thread_id))
            if session_id is None:
                continue

            async def newest(tx: Tx, key: SessionKey) -> dict[str, str]:
                rows = [row for row in await tx.graphs.all(key) if not row.hidden]
                # The newest comes first, and so it has to be the last to be set.
                return {row.namespace: row.id for row in reversed(rows)}

            kept = await self._parts.sessions.read(session_id, newest)
            places = set(kept.items()) if strategy == "keep_latest" else set()
            await self._drop(session_id, partial(_is_other, places))

    async def _drop(
        self, session_id: SessionId, unwanted: Callable[[tuple[str, str]], bool]
    ) -> None:
        async def drop(writer: ForeignWriter) -> None:
            count = await state.drop(writer.tx, writer.key, unwanted, self._load)
            if count:
                text = f"{count} checkpoints of the graph were removed; the messages stay."
                notice = Notice(code=NoticeCode.INFORMATION, text=text)
                await writer.say(MessageDraft(role=Role.SYSTEM, parts=(notice,)))

        await self._parts.sessions.write(session_id, drop)

    async def _copy(self, source: str, target: str) -> None:
        found = await self._find(source)
        if found is None:
            return
        source_key = await self._parts.sessions.key_of(found)

        async def copy(writer: ForeignWriter) -> None:
            if await writer.tx.graphs.all(writer.key):
                raise Conflict(
                    Code.ID_REUSED,
                    f"The thread {target} has checkpoints already; copy to another id.",
                )
            await writer.tx.graphs.copy(source_key, writer.key)
            newest = await writer.tx.graphs.newest(writer.key, "")
            if newest is None or self._messages_key is None:
                return
            whole = await state.whole(writer.tx, writer.key, target, newest, self._load)
            stored = whole.values.get(self._messages_key)
            said = () if stored is None else self._value(stored)
            if stored is not None and _are_messages(said):
                await show_messages(writer, said, self._typed(said, stored), self.effects)

        await self._parts.sessions.write(await self.open_thread(target), copy)

    async def _ancestors(self, config: Config, channels: Sequence[str]) -> Any:
        async def read(tx: Tx, key: SessionKey) -> Any:
            row = await self._row(tx, key, config)
            return row and await state.ancestors(tx, key, row, channels, self._load)

        return await self._read(_thread(config), read) or ()

    def _history(self, found: Any, channels: Sequence[str]) -> Mapping[str, Any]:
        made: dict[str, dict[str, Any]] = {channel: {"writes": []} for channel in channels}
        for stored, writes in reversed(found):
            for write in writes:
                entry = (write.task_id, write.channel, self.serde.loads_typed(write.value))
                made[write.channel]["writes"].append(entry)
            for channel, value in stored.items():
                made[channel]["seed"] = self._value(value)
        return made


def _is_other(kept: set[tuple[str, str]], place: tuple[str, str]) -> bool:
    return place not in kept


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, BaseMessage) for each in value)


def _is_chosen(row: GraphCheckpoint, given: Mapping[str, Any], until: str | None) -> bool:
    namespace, id_ = given.get("checkpoint_ns"), given.get("checkpoint_id")
    is_named = id_ in (None, row.id) and namespace in (None, row.namespace)
    return is_named and (until is None or row.id < until)


def _thread(config: Config) -> str:
    return str(config["configurable"]["thread_id"])


def _namespace(config: Config) -> str:
    return str(config["configurable"].get("checkpoint_ns") or "")


def _config(thread_id: str, namespace: str, id_: str) -> dict[str, Any]:
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": namespace,
            "checkpoint_id": id_,
        }
    }
