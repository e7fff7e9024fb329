"""How zones are shown: an archive in a list, and a desk replayed."""

from holdfast.domain.errors import Internal
from holdfast.domain.ids import Owner
from holdfast.domain.zone_lines import LineQuery, shown
from holdfast.domain.zone_previews import (
    NOTHING,
    PREVIEW_LINES,
    SNAPSHOT_LARGEST,
    output_preview,
    parsed,
    snapshot_preview,
    version_of,
)
from holdfast.domain.zone_replays import REPLAY_ROOM, Replay, ReplaySource, planned
from holdfast.domain.zones import (
    OUTPUT_FILE,
    SNAPSHOT_FILE,
    ArchiveSummary,
    ZoneFile,
    archive_prefix,
    archive_time,
)
from holdfast.ports import Tx
from holdfast.services.zone_reading import lines_between, newest_lines, read_lines


async def archives_of(tx: Tx, owner: Owner, definition_id: str) -> list[tuple[str, int]]:
    """Return the archives of an agent with their times, newest first; other names are left out."""
    names = await tx.zones.names(owner, archive_prefix(definition_id))
    dated = [(zone, archive_time(definition_id, zone)) for zone in names]
    return sorted(((zone, ms) for zone, ms in dated if ms is not None), key=lambda each: -each[1])


async def summary_of(tx: Tx, owner: Owner, zone: str, ms: int) -> ArchiveSummary:
    """Return an archive as a list shows it; one that is damaged must not hide the others."""
    try:
        files = {file.name: file for file in await tx.zones.files(owner, zone)}
    except Internal:
        files = {}
    state, output = files.get(SNAPSHOT_FILE), files.get(OUTPUT_FILE)
    try:
        version, preview, nodes = await _preview(tx, state, output)
    except Internal:
        version, preview, nodes = None, *NOTHING
    return ArchiveSummary(
        archive_zoneid=zone,
        archived_at_ms=ms,
        preview=preview,
        node_count=nodes,
        size=sum(file.size for file in files.values()),
        lines=output.lines if output else 0,
        has_state=state is not None,
        has_output=output is not None,
        schema_version=version,
    )


async def _preview(
    tx: Tx, state: ZoneFile | None, output: ZoneFile | None
) -> tuple[int | None, str, int]:
    """Return the version of a snapshot, what an archive is about, and how much is in it."""
    content = await _snapshot(tx, state)
    version = None if content is None else version_of(parsed(content))
    is_log = state is None or (version is not None and version >= 2)
    told = await _log_preview(tx, output) if is_log else snapshot_preview(content)
    return version, *told


async def _snapshot(tx: Tx, file: ZoneFile | None) -> bytes | None:
    if file is None or file.size > SNAPSHOT_LARGEST:
        return None
    return await tx.zones.read(file, 0, file.size)


async def _log_preview(tx: Tx, output: ZoneFile | None) -> tuple[str, int]:
    if output is None:
        return NOTHING
    first = await lines_between(tx, output, 0, min(PREVIEW_LINES, output.lines))
    return output_preview(first), output.lines


async def replayed(tx: Tx, owner: Owner, zone: str, *, window: int, page: int) -> Replay:
    """Return what is shown of a desk; whatever lies there, nothing of it raises."""
    files = {file.name: file for file in await tx.zones.files(owner, zone)}
    state, output = files.get(SNAPSHOT_FILE), files.get(OUTPUT_FILE)
    snapshot = None if state is None else await tx.zones.read(state, 0, state.size)
    plan = planned(snapshot, output.lines if output else 0, window=window, page=page)
    first, found, torn = plan.first, list[bytes](), False
    if output is not None:
        first, found = await newest_lines(tx, output, plan.first, room=REPLAY_ROOM)
        torn = (await read_lines(tx, output, LineQuery(start=output.lines, limit=1))).torn
    return Replay(
        source=plan.source,
        lines=tuple(shown(found)),
        nodes=plan.nodes,
        start=plan.start if plan.source is ReplaySource.V1 else first,
        total=output.lines if output else 0,
        overlay=plan.overlay,
        generation=output.generation if output else None,
        torn=torn,
        problem=plan.problem,
    )
