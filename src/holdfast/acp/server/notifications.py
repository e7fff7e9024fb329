"""`session/update` notifications of one session: each update once, in order; also its replay."""

from collections.abc import Iterable
from typing import Any, Final

from holdfast.acp.rpc.connection import AcpConnection
from holdfast.acp.rpc.framing import ConnectionLost
from holdfast.acp.server.capabilities import session_options
from holdfast.acp.server.content import content_block
from holdfast.acp.server.updates import (
    COMPACTED,
    Update,
    UpdateTranslator,
    message_chunk,
    plan_update,
    thought_chunk,
    usage_update,
)
from holdfast.api import Holdfast
from holdfast.domain.errors import HoldfastError
from holdfast.domain.events import (
    Gap,
    MessageAppended,
    Payload,
    StepDelta,
    StepEnded,
    StepFailed,
    StepStarted,
    TurnStarted,
)
from holdfast.domain.ids import MessageId, ModelId
from holdfast.domain.messages import Compaction, Media, Message, Plan, Reasoning, Role, Text
from holdfast.domain.models import Model
from holdfast.domain.sessions import Session, Status

PAGE: Final = 500
_EVENT_PAGE: Final = 1_000


async def replay_cursor(backend: Holdfast, session: Session) -> int:
    """Return the event after which a replayed session is followed.

    While a text is streamed it has no row yet, so following starts before its first delta.
    """
    if session.status is not Status.RUNNING:
        return session.last_event
    before = session.last_event
    while before > 0:
        first = max(0, before - _EVENT_PAGE)
        page = await backend.events.list(
            backend.owner, session.id, after=first, limit=before - first
        )
        for item in reversed(page.items):
            if isinstance(item, Gap):
                return session.last_event
            if isinstance(item.payload, StepStarted):
                return item.sequence - 1
            if isinstance(item.payload, StepEnded | StepFailed | TurnStarted):
                return session.last_event
        before = first
    return session.last_event


class SessionNotifier:
    """Sends the updates of one session; ignores a lost connection."""

    def __init__(
        self,
        backend: Holdfast,
        connection: AcpConnection,
        session: Session,
        models: Iterable[Model],
    ) -> None:
        self.session = session
        self.translator = UpdateTranslator(session.context.working_dir)
        # Messages that this client has sent and that are not echoed to it.
        self.own: set[str] = set()
        self._backend = backend
        self._connection = connection
        self._models = {model.id: model for model in models}
        self._model: ModelId | None = None
        self._microcents: int | None = session.microcents
        self._rows = session.message_count
        # The message whose text was last sent as deltas.
        self._last_reported: MessageId | None = None

    @property
    def models(self) -> tuple[Model, ...]:
        """Return the known models."""
        return tuple(self._models.values())

    async def replay(self) -> None:
        """Send all rows up to the session's message count, and the last plan."""
        backend, session = self._backend, self.session
        after = 0
        last: Plan | None = None
        while after < session.message_count:
            most = min(PAGE, session.message_count - after)
            page = await backend.messages.list(backend.owner, session.id, after=after, limit=most)
            for row in page.items:
                last = next((part for part in row.parts if isinstance(part, Plan)), last)
                await self._send_row(row)
            after = page.items[-1].sequence if page.items else session.message_count
        if last is not None:
            await self.send([plan_update(last.steps)])

    async def send_event(self, payload: Payload) -> None:
        """Send an event."""
        if isinstance(payload, StepDelta) and payload.message_id is not None:
            self._last_reported = payload.message_id
        await self.send(self.translator.of(payload))

    async def remark(self, texts: Iterable[str]) -> None:
        """Send a message to the user that is not part of the history."""
        await self.send([message_chunk(text, None) for text in texts])

    async def send_message(self, appended: MessageAppended) -> None:
        """Send a row, unless events have sent or will send its content."""
        if appended.sequence <= self._rows:
            return
        self._rows = appended.sequence
        is_reported = appended.message_id in self.own or appended.message_id == self._last_reported
        self.own.discard(appended.message_id)
        # Results are sent with the end event of their calls.
        if is_reported or appended.role is Role.TOOL_RESULT:
            return
        backend = self._backend
        row = await backend.messages.get(backend.owner, self.session.id, appended.message_id)
        if row.role is Role.TOOL_CALL:
            self.translator.learn(row)
        elif not any(isinstance(part, Compaction) for part in row.parts):
            await self._send_row(row)

    async def send_usage(self, payload: StepStarted | StepEnded) -> None:
        """Send the usage of the context window after each model response."""
        if isinstance(payload, StepStarted):
            self._model = payload.model_id
            return
        if payload.usage is None:
            return
        # After one step without a price the total is unknown.
        is_known = self._microcents is not None and payload.priced
        self._microcents = (self._microcents or 0) + payload.microcents if is_known else None
        model = await self._current_model()
        if model is not None and model.context_window is not None:
            await self.send([usage_update(payload.usage, model.context_window, self._microcents)])

    async def send_changes(self) -> None:
        """Send changes without an event: the title, or a mode and model changed elsewhere."""
        backend, before = self._backend, self.session
        now = self.session = await backend.sessions.get(backend.owner, before.id)
        if now.title != before.title:
            await self.send([_update("session_info_update", title=now.title)])
        if now.approval is not before.approval:
            await self.send([_update("current_mode_update", currentModeId=now.approval.value)])
        if (now.approval, now.model_id) != (before.approval, before.model_id):
            shown = session_options(now, self.models, await backend.defaults())
            await self.send([_update("config_option_update", configOptions=shown)])

    async def send(self, updates: Iterable[Update]) -> None:
        """Send each update as a notification of its own."""
        for update in updates:
            try:
                await self._connection.notify(
                    "session/update", {"sessionId": self.session.id, "update": update}
                )
            except ConnectionLost:
                # Not raised, because the events up to the end of the turn must still be processed.
                return

    async def _current_model(self) -> Model | None:
        if self._model is None:
            return None
        if self._model not in self._models:
            self._models |= {each.id: each for each in await self._backend.models.catalogue()}
        return self._models.get(self._model)

    async def _send_row(self, row: Message) -> None:
        """Send one row, without plans: only the last one counts."""
        match row.role:
            case Role.USER:
                await self._send_blocks("user_message_chunk", row)
            case Role.ASSISTANT:
                thoughts = (part for part in row.parts if isinstance(part, Reasoning))
                await self.send([thought_chunk(part.text, row.id) for part in thoughts])
                await self._send_blocks("agent_message_chunk", row)
            case _:
                if any(isinstance(part, Compaction) for part in row.parts):
                    await self.send([message_chunk(COMPACTED, row.id)])
                await self.send(self.translator.row(row))

    async def _send_blocks(self, kind: str, row: Message) -> None:
        backend, session_id = self._backend, self.session.id

        async def read(handle: str) -> bytes | None:
            try:
                return await backend.media.read(backend.owner, session_id, handle)
            # A missing image must not prevent the text of the message.
            except HoldfastError:
                return None

        for part in row.parts:
            if isinstance(part, Text | Media):
                block = await content_block(part, read)
                await self.send([_update(kind, content=block, messageId=row.id)])


def _update(kind: str, **fields: Any) -> Update:
    return {"sessionUpdate": kind, **fields}
