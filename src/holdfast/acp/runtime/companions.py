"""MCP servers that go along with a program, as the protocol wants them written."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.acp.runtime.conversation import Conversation
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.messages import Message, Notice, NoticeCode, Role
from holdfast.domain.secrets import Secret
from holdfast.ports import ClientMcpServer


def entries_of(
    conversation: Conversation, companions: Sequence[ClientMcpServer]
) -> list[dict[str, Any]]:
    """Return what is sent of those servers that the program can use; all secrets are in it."""
    return [_entry(each) for each in companions if _is_usable(conversation, each)]


def left_out(conversation: Conversation, companions: Sequence[ClientMcpServer]) -> Iterator[str]:
    """Yield in sentences which servers the program cannot use."""
    for each in companions:
        if not _is_usable(conversation, each):
            yield (
                f"The agent does not get the MCP server {each.name}: its program takes none over "
                f"{each.transport}."
            )


def told_of(troubles: Sequence[str], history: Sequence[Message]) -> tuple[MessageDraft, ...]:
    """Return what is missing as rows; what the record says already is not said again."""
    told = {part.text for row in history for part in row.parts if isinstance(part, Notice)}
    return tuple(
        MessageDraft(
            role=Role.SYSTEM, parts=(Notice(code=NoticeCode.MCP_UNAVAILABLE, text=trouble),)
        )
        for trouble in dict.fromkeys(troubles)
        if trouble not in told
    )


def _is_usable(conversation: Conversation, companion: ClientMcpServer) -> bool:
    # Programs on pipes are the one kind that every agent has to take.
    is_program = companion.transport == "stdio"
    return is_program or conversation.can("mcpCapabilities", companion.transport)


def _entry(companion: ClientMcpServer) -> dict[str, Any]:
    values = _pairs(companion.values)
    if companion.transport == "stdio":
        return {
            "name": companion.name,
            "command": companion.command,
            "args": list(companion.args),
            "env": values,
        }
    return {
        "type": companion.transport,
        "name": companion.name,
        "url": companion.url,
        "headers": values,
    }


def _pairs(values: Mapping[str, Secret]) -> list[dict[str, str]]:
    return [{"name": name, "value": value.reveal()} for name, value in values.items()]
