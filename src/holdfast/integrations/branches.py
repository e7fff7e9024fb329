"""Histories that a framework may continue from an earlier point: the session shows one branch."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from holdfast.integrations.records import ForeignEntry, ForeignWriter

# A further message of the record before, so that each can be withdrawn.
_MORE = "holdfast:more"


async def show_branch(
    writer: ForeignWriter,
    stream: str,
    wanted: Sequence[tuple[str, bytes]],
    make: Callable[[int], ForeignEntry],
) -> range:
    """Make a stream show these records, by key and content; return the places of those added.

    What comes after the first difference is withdrawn, and `make` gives what replaces it.
    """
    live = list(await writer.view(stream))
    shown = [record for record in live if record.kind != _MORE]
    same = 0
    for record, identity in zip(shown, wanted, strict=False):
        if (record.key, record.raw) != identity:
            break
        same += 1
    if same < len(shown):
        kept = {key for key, _ in wanted[same:]}
        reason = "edit" if any(record.key in kept for record in shown[same:]) else "rewind"
        gone = [record for record in live if record.ordinal >= shown[same].ordinal]
        await writer.withdraw(stream, gone, reason)
    for place in range(same, len(wanted)):
        entry, (key, raw) = make(place), wanted[place]
        own = 0 if entry.message_id else 1
        first = replace(entry, key=key, raw=raw, drafts=entry.drafts[:own])
        more = [
            ForeignEntry(kind=_MORE, raw=b"", key=key, drafts=(draft,))
            for draft in entry.drafts[own:]
        ]
        await writer.add(stream, [first, *more])
    return range(same, len(wanted))
