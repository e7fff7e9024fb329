"""What an agent's options want of a fresh conversation: a mode, and choices that are offered."""

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.acp.runtime.conversation import Conversation
from holdfast.acp.translate.stops import words_of
from holdfast.acp.translate.told import opened
from holdfast.acp.transport.connection import Refused
from holdfast.domain.agent_processes import ProgramOptions
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.messages import Notice, NoticeCode, Role

_MODE = "mode"


async def apply_options(
    conversation: Conversation, options: ProgramOptions, *, within: float
) -> tuple[MessageDraft, ...]:
    """Set what is wanted and not so already; what is refused is told and is no failure."""
    notices = []
    for what, wanted, method, params in _wishes(conversation, options):
        refusal = "it is not offered"
        if method is not None:
            asked = {"sessionId": conversation.session, **params}
            try:
                result = await conversation.ask(method, asked, within=within)
            except TimeoutError:
                refusal = f"no answer within {within:g} s"
            except Refused as refused:
                refusal = words_of(refused.error)
            else:
                conversation.told = opened(conversation.told, result)
                continue
        notices.append(_told(f"The agent did not take {what} {wanted!r}: {refusal}."))
    return tuple(notices)


Wish = tuple[str, str | bool, str | None, dict[str, Any]]


def _wishes(conversation: Conversation, options: ProgramOptions) -> Iterator[Wish]:
    told = conversation.told
    if options.mode is not None and (conversation.is_fresh or told.mode != options.mode):
        # Where both are offered, the options count: the modes are their older form.
        chosen = next((each for each in told.options if _MODE in _names(each)), None)
        if chosen is not None:
            wanted = {"configId": chosen.get("id"), "value": options.mode}
            yield _MODE, options.mode, "session/set_config_option", wanted
        else:
            method = "session/set_mode" if told.modes else None
            yield _MODE, options.mode, method, {"modeId": options.mode}
    for name, value in options.settings.items() if conversation.is_fresh else ():
        is_offered = any(each.get("id") == name for each in told.options)
        kind = {"type": "boolean"} if isinstance(value, bool) else {}
        method = "session/set_config_option" if is_offered else None
        yield f"the option {name}", value, method, {"configId": name, "value": value, **kind}


def _names(option: Mapping[str, Any]) -> tuple[object, object]:
    return option.get("id"), option.get("category")


def _told(text: str) -> MessageDraft:
    notice = Notice(code=NoticeCode.AGENT_OPTION_REFUSED, text=text)
    return MessageDraft(role=Role.SYSTEM, parts=(notice,))
