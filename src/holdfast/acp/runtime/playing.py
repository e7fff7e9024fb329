"""One prompt and everything up to its reply: the one consumer of what the program says in a turn.

Lines are taken in their order. What those who work beside the turn have to write goes first, so
that nothing overtakes it.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final

from holdfast.acp.runtime.host import Host
from holdfast.acp.runtime.stage import Stage
from holdfast.acp.translate.readings import fields
from holdfast.acp.translate.stops import is_unknown_session
from holdfast.acp.transport.connection import Answered, Item, Lost, Refused
from holdfast.acp.transport.framing import Junk, Notification, Request
from holdfast.domain.drafts import Draft, MessageDraft
from holdfast.domain.events import Failure, FailureCode
from holdfast.domain.messages import Notice, NoticeCode, Role
from holdfast.ports import OutputStore

log = logging.getLogger(__name__)

Batch = tuple[Draft, ...]

# So many drafts are one transaction at most; what else has come has to wait for it.
_TOGETHER: Final = 256
# After a line that had to be dropped, silence means that it was the reply.
_AFTER_A_DROPPED_LINE: Final = 5.0
# So often it is noted that the program works on something that no row tells of.
ACTIVITY_SECONDS: Final = 1.0


class Forgotten(Exception):  # noqa: N818 — it says what is, not what went wrong
    """The program does not know the conversation, and nothing has come of the prompt."""


class Gone(Exception):  # noqa: N818 — it says what is, not what went wrong
    """The program is gone in the middle of its turn."""


class Playing:
    """A prompt in flight. `prompt` is its reply once it was sent, `is_over` that it has come."""

    def __init__(
        self, stage: Stage, host: Host, *, silence: float, shelf: OutputStore | None
    ) -> None:
        self.prompt: asyncio.Future[Any] | None = None
        self.is_over = False
        self._stage = stage
        self._host = host
        self._translator = stage.translator
        self._connection = stage.conversation.connection
        self._silence = silence
        self._shelf = shelf
        self._is_first = False
        self._excused_at = 0.0
        self._is_silence_told = False
        self._dropped_at: float | None = None
        self._written_at = 0.0
        self._has_said_something = False

    async def batches(self, blocks: Sequence[Any]) -> AsyncGenerator[Batch, None]:
        """Send the prompt and yield what comes of it; the last batch ends with an outcome.

        Raises `Forgotten` or `Gone`; then nothing has ended yet.
        """
        conversation = self._stage.conversation
        params = {"sessionId": conversation.session, "prompt": list(blocks)}
        try:
            self.prompt = await self._connection.begin("session/prompt", params)
        except Lost:
            raise Gone from None
        self._is_first, conversation.is_prompted = not conversation.is_prompted, True
        self._excused_at = self._stage.now()
        while True:
            item = await self._next()
            # First of all: what comes from the line below must not overtake it.
            while (written := self._stage.outbox.taken()) is not None:
                yield await self._ready(tuple(written))
            if isinstance(item, Answered) and item.future is self.prompt:
                self.is_over = True
                yield await self._ready(self._ended())
                return
            async with aclosing(self._heard(item)) as batches:
                async for batch in batches:
                    yield await self._ready(batch)
            if self.is_over:
                return
            if self._translator.is_flooded:
                yield self._translator.flooded()
                return

    async def _heard(self, item: Item | None) -> AsyncGenerator[Batch, None]:
        """Yield what comes of one thing that was said, or of the time that has passed."""
        if isinstance(item, Request):
            if item.method == "session/request_permission":
                self._translator.weigh(item.size)
            async with aclosing(self._host.take(item)) as batches:
                async for batch in batches:
                    self._has_said_something = True
                    yield tuple(batch)
        elif isinstance(item, Notification):
            if found := self._updates(item):
                yield self._with_the_end(found)
            elif self._stage.now() >= self._written_at + ACTIVITY_SECONDS:
                # Work that nothing is written of is work all the same: nobody is idle.
                self._written_at = self._stage.now()
                await self._stage.touch()
        elif isinstance(item, Junk):
            self._dropped_at = self._connection.heard_at
        elif item is None and (found := self._due()):
            yield found

    def _updates(self, item: Notification) -> Batch:
        """Take in an update and those that have come already: they are written together."""
        drafts = list(self._update(item))
        # Nobody can have written beside the turn meanwhile, because nothing is waited for here.
        while len(drafts) < _TOGETHER and (more := self._connection.ready()) is not None:
            drafts += self._update(more)
        return tuple(drafts)

    def _update(self, item: Notification) -> Batch:
        if item.method != "session/update":
            return ()
        if fields(item.params).get("sessionId") != self._stage.conversation.session:
            self._stage.conversation.hear(item.params, size=item.size)
            return ()
        now = self._stage.now()
        return self._joined(self._translator.update(item.params, now=now, size=item.size))

    def _with_the_end(self, said: Batch) -> Batch:
        """Return what was said, and the end of the turn where the reply has come with it.

        Not while somebody works beside the turn, who may have something to write before that.
        """
        if self._connection.owed or self._translator.is_flooded:
            return said
        answer = self._connection.answered()
        is_ours = answer is not None and answer.future is self.prompt
        if answer is None or not is_ours or isinstance(answer.future.exception(), Lost):
            return said
        self.is_over = True
        return (*said, *self._ended())

    def _ended(self) -> Batch:
        """Return the last batch, by what the program has answered."""
        if self.prompt is None:
            raise Gone
        try:
            return self._translator.ended(self.prompt.result())
        except Refused as refused:
            is_first = self._is_first and not self._stage.conversation.is_fresh
            is_lost = is_unknown_session(refused.error, is_first_prompt=is_first)
            if is_lost and not self._has_said_something:
                raise Forgotten from None
            return self._translator.refused(refused.error)
        except Lost:
            raise Gone from None

    def _due(self) -> Batch:
        """Return what has waited long enough, or what has to be said about a silence."""
        now = self._stage.now()
        found = self._joined(self._translator.flush(now=now))
        if self._connection.owed:
            # The clock stands while we owe the program an answer.
            self._excused_at = now
        elif self._is_cut_off(now):
            return (*found, *self._translator.died(_CUT_OFF))
        elif now >= self._quiet_since() + self._silence and not self._is_silence_told:
            self._is_silence_told = True
            return (*found, _silent(self._silence))
        return found

    def _is_cut_off(self, now: float) -> bool:
        return self._dropped_at is not None and now >= self._quiet_since() + _AFTER_A_DROPPED_LINE

    def _quiet_since(self) -> float:
        return max(self._connection.heard_at, self._excused_at)

    def _joined(self, batches: list[Batch]) -> Batch:
        if batches:
            self._has_said_something = True
        # Written together: who works beside the turn must not come between them.
        return batches[0] if len(batches) == 1 else tuple(d for each in batches for d in each)

    async def _ready(self, batch: Batch) -> Batch:
        """Return a batch whose contents are on the shelf."""
        self._written_at = self._stage.now()
        for each in self._translator.contents():
            if self._shelf is not None:
                await self._shelf.keep(each.content, mime_type=each.mime_type)
        return batch

    async def _next(self) -> Item | None:
        """Return what comes next, or nothing when a time is over or somebody has to write."""
        try:
            async with asyncio.timeout_at(self._wake_at()):
                if not self._connection.owed:
                    return await self._taken()
                return await self._taken_beside()
        except TimeoutError:
            return None

    async def _taken(self) -> Item:
        async for item in self._connection.incoming():
            return item
        raise Gone

    async def _taken_beside(self) -> Item | None:
        """Wait for the program and for those who work beside the turn; neither loses anything."""
        loop = asyncio.get_running_loop()
        taking = loop.create_task(self._taken())
        writing = loop.create_task(self._stage.outbox.filled())
        try:
            await asyncio.wait({taking, writing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (taking, writing):
                task.cancel()
            await asyncio.wait({taking, writing})
        # Its item was taken out of the queue: it must not be forgotten, whatever else happened.
        return None if taking.cancelled() else taking.result()

    def _wake_at(self) -> float | None:
        times = [self._translator.deadline]
        if not self._is_silence_told:
            times.append(
                max(self._quiet_since(), self._stage.now() - self._silence) + self._silence
            )
        if self._dropped_at is not None:
            times.append(self._quiet_since() + _AFTER_A_DROPPED_LINE)
        found = [each for each in times if each is not None]
        return min(found, default=None)


_CUT_OFF: Final = Failure(
    code=FailureCode.AGENT_LINE_TOO_LONG,
    message="The agent sent a line that is longer than acp.line_limit, and nothing after it.",
)


def _silent(seconds: float) -> MessageDraft:
    told = f"The agent has said nothing for {seconds:g} s; its turn goes on."
    notice = Notice(code=NoticeCode.AGENT_SILENT, text=told)
    return MessageDraft(role=Role.SYSTEM, parts=(notice,))
