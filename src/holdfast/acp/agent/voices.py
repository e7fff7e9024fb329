"""The updates of one session on their way to a client: told once, in order, and only news."""

from collections.abc import Iterable
from typing import Any

from holdfast.acp.agent.abilities import options
from holdfast.acp.agent.house import House
from holdfast.acp.agent.replays import replayed, row_updates
from holdfast.acp.agent.updates import Telling, Update, message_chunk, usage_update
from holdfast.acp.transport.connection import Connection, Lost
from holdfast.domain.events import MessageAppended, Payload, StepDelta, StepEnded, StepStarted
from holdfast.domain.ids import MessageId, ModelId
from holdfast.domain.messages import Compaction, Message, Role
from holdfast.domain.models import Model
from holdfast.domain.sessions import Session


class Voice:
    """Speaks for one session; to a client that is gone it speaks without being heard."""

    def __init__(
        self, house: House, connection: Connection, session: Session, models: Iterable[Model]
    ) -> None:
        self.session = session
        self.telling = Telling(session.context.working_dir)
        # Messages that the client has sent itself, and need not be told.
        self.own: set[str] = set()
        self._house = house
        self._connection = connection
        self._models = {model.id: model for model in models}
        self._model: ModelId | None = None
        self._microcents: int | None = session.microcents
        self._rows = session.message_count
        # The text that was told last, in pieces.
        self._told: MessageId | None = None

    @property
    def models(self) -> tuple[Model, ...]:
        """Return the models that are known."""
        return tuple(self._models.values())

    async def replay(self) -> None:
        """Tell the past."""
        async for update in replayed(self._house, self.session, self.telling):
            await self.send([update])

    async def tell(self, payload: Payload) -> None:
        """Tell an event."""
        if isinstance(payload, StepDelta) and payload.message_id is not None:
            self._told = payload.message_id
        await self.send(self.telling.of(payload))

    async def remark(self, texts: Iterable[str]) -> None:
        """Tell the person something that the record does not say."""
        await self.send([message_chunk(text, None) for text in texts])

    async def appended(self, appended: MessageAppended) -> None:
        """Tell a row, if the news have not told and will not tell what is in it."""
        if appended.sequence <= self._rows:
            return
        self._rows = appended.sequence
        is_told = appended.message_id in self.own or appended.message_id == self._told
        self.own.discard(appended.message_id)
        # Results come with the end of their calls.
        if is_told or appended.role is Role.TOOL_RESULT:
            return
        house = self._house
        row = await house.messages.get(house.owner, self.session.id, appended.message_id)
        if row.role is Role.TOOL_CALL:
            self.telling.learn(row)
        elif not any(isinstance(part, Compaction) for part in row.parts):
            await self._send_row(row)

    async def step(self, payload: StepStarted | StepEnded) -> None:
        """Tell how full the model's window is, once it has answered."""
        if isinstance(payload, StepStarted):
            self._model = payload.model_id
            return
        if payload.usage is None:
            return
        # Once something has no price, nobody knows what it was in all.
        is_known = self._microcents is not None and payload.priced
        self._microcents = (self._microcents or 0) + payload.microcents if is_known else None
        model = await self._current_model()
        if model is not None and model.context_window is not None:
            await self.send([usage_update(payload.usage, model.context_window, self._microcents)])

    async def look(self) -> None:
        """Tell what no event tells: a title, or a mode and a model that were changed elsewhere."""
        house, before = self._house, self.session
        now = self.session = await house.sessions.get(house.owner, before.id)
        if now.title != before.title:
            await self.send([_told("session_info_update", title=now.title)])
        if now.approval is not before.approval:
            await self.send([_told("current_mode_update", currentModeId=now.approval.value)])
        if (now.approval, now.model_id) != (before.approval, before.model_id):
            shown = options(now, self.models, house.config)
            await self.send([_told("config_option_update", configOptions=shown)])

    async def send(self, updates: Iterable[Update]) -> None:
        """Send updates, each in a line of its own."""
        for update in updates:
            try:
                await self._connection.notify(
                    "session/update", {"sessionId": self.session.id, "update": update}
                )
            except Lost:
                # The turn goes on to where it is stopped, and that has to be heard.
                return

    async def _current_model(self) -> Model | None:
        if self._model is None:
            return None
        if self._model not in self._models:
            self._models |= {each.id: each for each in await self._house.models.catalogue()}
        return self._models.get(self._model)

    async def _send_row(self, row: Message) -> None:
        await self.send(await row_updates(self._house, self.session.id, row, self.telling))


def _told(kind: str, **fields: Any) -> Update:
    return {"sessionUpdate": kind, **fields}
