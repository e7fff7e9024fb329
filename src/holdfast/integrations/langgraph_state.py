"""Checkpoints of a thread in the store, as bytes; knows nothing of the serializer but its shape."""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.domain.ids import SessionKey
from holdfast.ports.store import Tx
from holdfast.store.graph_checkpoints import LIST, GraphCheckpoint, GraphWrite, ListRef, Typed

# Bound of the lists in memory whose next versions are compared with them, in bytes.
_LISTS_MOST: Final = 32 << 20
_encode: Final = msgspec.msgpack.Encoder().encode
_encode_ref: Final = msgspec.json.Encoder().encode


class Body(Struct, frozen=True, array_like=True):
    """A checkpoint without the values of its channels, and its metadata."""

    checkpoint: Typed
    metadata: Typed


_decode: Final = msgspec.msgpack.Decoder(Body).decode
# A value as it is stored: whole, or by element.
StoredValue = Typed | list[Typed]
# A channel: its session, its namespace and its name.
Place = tuple[SessionKey, str, str]
NewList = tuple[Place, ListRef, list[Typed]]
# Returns a checkpoint and its metadata as the framework knows them.
Load = Callable[[Body], tuple[Mapping[str, Any], Mapping[str, Any]]]


class PutRequest(Struct, frozen=True, kw_only=True):
    """A checkpoint to be stored, with the versions that are new in it."""

    namespace: str
    id: str
    parent_id: str | None
    run_id: str | None
    body: Body
    values: dict[tuple[str, str], StoredValue]


class FoundCheckpoint(Struct, frozen=True, kw_only=True):
    """A checkpoint with the values and the writes that belong to it."""

    thread_id: str
    row: GraphCheckpoint
    body: Body
    values: dict[str, StoredValue]
    writes: list[GraphWrite]


class KnownLists:
    """The newest lists of channels, so that the next version is compared without reading them."""

    def __init__(self) -> None:
        self._known: OrderedDict[Place, tuple[ListRef, list[Typed]]] = OrderedDict()
        self._weight = 0

    def get(self, place: Place) -> tuple[ListRef, list[Typed]] | None:
        return self._known.get(place)

    def keep(self, place: Place, ref: ListRef, items: list[Typed]) -> None:
        self.drop(place)
        self._known[place] = ref, items
        self._weight += _weight(items)
        while self._weight > _LISTS_MOST and len(self._known) > 1:
            self._weight -= _weight(self._known.popitem(last=False)[1][1])

    def drop(self, place: Place) -> None:
        found = self._known.pop(place, None)
        if found is not None:
            self._weight -= _weight(found[1])


def _weight(items: Sequence[Typed]) -> int:
    return sum(len(content) + 150 for _, content in items)


async def put(
    tx: Tx, key: SessionKey, request: PutRequest, known: KnownLists, load: Load
) -> list[NewList]:
    """Store a checkpoint and its new versions; return its lists, to be known once committed."""
    lists: list[NewList] = []
    body = _encode(request.body)
    row = GraphCheckpoint(
        namespace=request.namespace,
        id=request.id,
        parent_id=request.parent_id,
        body=body,
        run_id=request.run_id,
    )
    await tx.graphs.save(key, row)
    before: Mapping[str, Any] | None = None
    for (channel, version), value in request.values.items():
        if not isinstance(value, list):
            await tx.graphs.set_value(key, request.namespace, channel, version, value)
            continue
        if before is None:
            before = await _versions(tx, key, request, load)
        place = (key, request.namespace, channel)
        older = await _older(tx, place, before.get(channel), known)
        number = secrets.randbits(53)
        ref = await tx.graphs.set_list(key, value, older, number)
        content = (LIST, _encode_ref(ref))
        await tx.graphs.set_value(key, request.namespace, channel, version, content)
        lists.append((place, ref, value))
    return lists


async def _versions(tx: Tx, key: SessionKey, request: PutRequest, load: Load) -> Mapping[str, Any]:
    """Return the versions that the channels had in the checkpoint before."""
    if request.parent_id is None:
        return {}
    parent = await tx.graphs.one(key, request.namespace, request.parent_id)
    return {} if parent is None else version_keys(load(_decode(parent.body))[0])


async def _older(
    tx: Tx, place: Place, version: str | None, known: KnownLists
) -> tuple[ListRef, Sequence[Typed]] | None:
    if version is None:
        return None
    key, namespace, channel = place
    ref = await tx.graphs.value(key, namespace, channel, version)
    if not isinstance(ref, ListRef):
        return None
    found = known.get(place)
    if found is not None and found[0] == ref:
        return found
    return ref, await tx.graphs.items(key, ref)


def version_keys(checkpoint: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of the channels of a checkpoint, as they are stored."""
    return {channel: version_key(each) for channel, each in checkpoint["channel_versions"].items()}


def version_key(version: Any) -> str:
    """Return a version as it is stored; a number is not the text of it."""
    return version if isinstance(version, str) else f"#{version!r}"


async def whole(
    tx: Tx, key: SessionKey, thread_id: str, row: GraphCheckpoint, load: Load
) -> FoundCheckpoint:
    """Return a checkpoint with everything that belongs to it."""
    body = _decode(row.body)
    versions = version_keys(load(body)[0])
    return FoundCheckpoint(
        thread_id=thread_id,
        row=row,
        body=body,
        values=await values(tx, key, row.namespace, versions.items()),
        writes=await tx.graphs.writes(key, row.namespace, row.id),
    )


async def values(
    tx: Tx, key: SessionKey, namespace: str, versions: Iterable[tuple[str, str]]
) -> dict[str, StoredValue]:
    """Return the values of channels that are stored."""
    found: dict[str, StoredValue] = {}
    for channel, version in versions:
        value = await tx.graphs.value(key, namespace, channel, version)
        if isinstance(value, ListRef):
            found[channel] = await tx.graphs.items(key, value)
        elif value is not None:
            found[channel] = value
    return found


def body_of(row: GraphCheckpoint) -> Body:
    """Return what a checkpoint and its metadata are."""
    return _decode(row.body)


async def ancestors(
    tx: Tx, key: SessionKey, row: GraphCheckpoint, channels: Sequence[str], load: Load
) -> list[tuple[dict[str, StoredValue], list[GraphWrite]]]:
    """Return the values and writes of the checkpoints before one, until each channel has a value.

    Checkpoints that are not shown any more are read as well.
    """
    found: list[tuple[dict[str, StoredValue], list[GraphWrite]]] = []
    missing, parent_id = set(channels), row.parent_id
    while missing and parent_id is not None:
        parent = await tx.graphs.one(key, row.namespace, parent_id)
        if parent is None:
            break
        versions = version_keys(load(_decode(parent.body))[0])
        wanted = [(each, versions[each]) for each in missing if each in versions]
        stored = await values(tx, key, row.namespace, wanted)
        writes = await tx.graphs.writes(key, row.namespace, parent_id)
        found.append((stored, [each for each in writes if each.channel in missing]))
        missing -= stored.keys()
        parent_id = parent.parent_id
    return found


async def drop(
    tx: Tx, key: SessionKey, unwanted: Callable[[tuple[str, str]], bool], load: Load
) -> int:
    """Remove checkpoints, except those that another one is read with, which are hidden.

    Returns how many are not shown any more.
    """
    rows = await tx.graphs.all(key)
    loaded = {(row.namespace, row.id): load(_decode(row.body)) for row in rows}
    places = {(row.namespace, row.id): row for row in rows}
    shown = [row for row in rows if not row.hidden and not unwanted((row.namespace, row.id))]
    stored = await tx.graphs.versions(key)
    needed: set[tuple[str, str]] = set()
    for row in shown:
        missing = set(loaded[row.namespace, row.id][1].get("counters_since_delta_snapshot") or ())
        at: GraphCheckpoint | None = row
        while at is not None:
            versions = version_keys(loaded[at.namespace, at.id][0])
            missing -= {
                each for each in missing if (at.namespace, each, versions.get(each, "")) in stored
            }
            if not missing or at.parent_id is None:
                break
            at = places.get((at.namespace, at.parent_id))
            if at is not None:
                needed.add((at.namespace, at.id))
    kept = {(row.namespace, row.id) for row in shown} | needed
    for place, row in places.items():
        if place not in kept:
            await tx.graphs.remove(key, row)
        elif row not in shown:
            await tx.graphs.hide(key, row)
    used = {
        (place[0], channel, version)
        for place in kept
        for channel, version in version_keys(loaded[place][0]).items()
    }
    await tx.graphs.sweep(key, used)
    return sum(not row.hidden for row in rows) - len(shown)
