"""The text of a session's workflow: made by the rule, and read again before anybody gets it."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.agent_forms import file_form
from holdfast.domain.agents import LlmRuntime
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import ModelId
from holdfast.domain.messages import Message
from holdfast.domain.models import model_of
from holdfast.domain.sessions import Session
from holdfast.domain.workflow_exports import export, open_model
from holdfast.domain.workflows import Workflow
from holdfast.services.models import Models

MOST_TIMES: Final = 16


class Scribe(Struct, frozen=True, kw_only=True):
    """How a workflow is written and read; the grammar of files is not this floor's."""

    write: Callable[[Workflow], str]
    read: Callable[[str], Workflow]
    largest: int


class WorkflowTexts:
    """Makes the files."""

    def __init__(self, models: Models, default: str, scribe: Scribe) -> None:
        """`default` is the model of an agent that names none, in a session without an answer."""
        self._models = models
        self._default = model_of(default)
        self._scribe = scribe

    def require_size(self, size: int) -> None:
        """Refuse rows of so many bytes, of which no file of that kind can be made."""
        # A file says less than the rows do, but never so much less.
        if size > MOST_TIMES * self._scribe.largest:
            raise _too_large(size, self._scribe.largest)

    async def text_of(self, session: Session, rows: tuple[Message, ...]) -> tuple[Workflow, str]:
        """Return the workflow of a session, and its text."""
        known = (self._default, *await self._models.list())
        refs = {model.id: model.ref for model in known}
        agent = self._agent(session, rows, refs)
        # In a thread, because a long session takes seconds to be read again.
        return await asyncio.to_thread(self._read_again, session, rows, refs, agent)

    def _read_again(
        self,
        session: Session,
        rows: tuple[Message, ...],
        refs: Mapping[ModelId, str],
        agent: dict[str, Any] | None,
    ) -> tuple[Workflow, str]:
        workflow = export(session, rows, refs, agent)
        text = self._scribe.write(workflow)
        size = len(text.encode())
        if size > self._scribe.largest:
            raise _too_large(size, self._scribe.largest)
        try:
            self._scribe.read(text)
        except Invalid as error:
            # An agent that was made otherwise than by a file may say what a file cannot.
            if agent is not None:
                return self._read_again(session, rows, refs, None)
            if error.code is Code.YAML_INVALID:
                raise _too_large(size, self._scribe.largest) from None
            raise
        return workflow, text

    def _agent(
        self, session: Session, rows: tuple[Message, ...], refs: Mapping[ModelId, str]
    ) -> dict[str, Any] | None:
        """Return the frozen agent as a file says it; nothing where it has no such form."""
        runtime = session.agent.runtime
        if not isinstance(runtime, LlmRuntime) or not session.agent.system_prompt:
            return None
        asked = open_model(session, rows, self._default.id)
        named = {each.model_id: refs.get(each.model_id, each.model_id) for each in runtime.models}
        return file_form(session.agent, named, default=refs.get(asked, asked))


def _too_large(size: int, largest: int) -> Invalid:
    return Invalid(
        Code.WORKFLOW_TOO_LARGE,
        f"As a workflow the session has {size:,} bytes, more than a file of that kind can hold; "
        "take a part of it, through one of its messages, or another format.",
        {"bytes": size, "largest": largest},
    )
