"""Items of the OpenAI Agents SDK as messages; knows their JSON, and not the package."""

import hashlib
import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.domain.drafts import MessageDraft
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    MEDIA_LARGEST,
    Compaction,
    Media,
    Notice,
    NoticeCode,
    Part,
    Reasoning,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolError,
    ToolResult,
    is_media_type,
    media_handle,
)
from holdfast.domain.recordings import encode_plain
from holdfast.domain.tools import ResultCode
from holdfast.integrations.calls import NOT_RUN, UNKNOWN_OUTCOME
from holdfast.integrations.records import ForeignEntry

Item = Mapping[str, Any]
ITEMS: Final = "items"
# Calls that the program runs, by the name of their tool where the item has none.
CALLS_HERE: Final = frozenset(
    {
        "function_call",
        "custom_tool_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
        "computer_call",
    }
)
# Calls that the provider has run; their result is in the same item.
_CALLS_THERE: Final = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_call",
    }
)
_OUTPUTS: Final = frozenset(f"{name}_output" for name in CALLS_HERE)
# Where the arguments of a call are that has no JSON text of them.
_ARGUMENTS: Final = ("input", "action", "operation", "actions", "queries", "code", "query")
# Where the result of a call is that the provider has run.
_OUTCOMES: Final = ("output", "outputs", "results", "result", "error")
_DATA: Final = "data:"


def encode_item(item: Any) -> bytes:
    """Return the bytes of an item, which are read back as the same value."""
    return encode_plain(item, "An item of a session")


def kind_of(item: Item) -> str:
    """Return the type of an item; a message may lack it."""
    return str(item.get("type") or ("message" if "role" in item else "unknown"))


def entry_of(item: Any) -> ForeignEntry:
    """Return an item as a record with its messages."""
    raw = encode_item(item)
    if not isinstance(item, Mapping):
        return ForeignEntry(kind="unknown", raw=raw)
    media: dict[str, tuple[str, bytes]] = {}
    drafts = _drafts(item, media)
    return ForeignEntry(kind=kind_of(item), raw=raw, drafts=drafts, media=tuple(media.values()))


def match_key(item: Item) -> str:
    """Return what tells that two forms of an item are the same item.

    Ids are left out: some models have none, and the SDK removes others.
    """
    kind = kind_of(item)
    if kind in CALLS_HERE | _OUTPUTS:
        return f"{kind}:{_call_id(item)}"
    said = _text_of(item.get("content")) if kind == "message" else encode_item(_without_id(item))
    text = said if isinstance(said, bytes) else f"{item.get('role')}:{said}".encode()
    return f"{kind}:{hashlib.sha256(text).hexdigest()}"


def answer_item(call: Item, text: str) -> dict[str, Any] | None:
    """Return the output item that says what is known of a call; `None` if there is no form."""
    kind = kind_of(call)
    if kind not in {"function_call", "custom_tool_call"}:
        return None
    return {"type": f"{kind}_output", "call_id": call["call_id"], "output": text}


def _without_id(item: Item) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in {"id", "status"}}


def _call_id(item: Item) -> str:
    return str(item.get("call_id") or item.get("id") or "")


def _drafts(item: Item, media: dict[str, tuple[str, bytes]]) -> tuple[MessageDraft, ...]:
    kind = kind_of(item)
    if kind == "message":
        return _message(item, media)
    if kind == "reasoning":
        said = _text_of(item.get("summary")) or _text_of(item.get("content"))
        return _draft(Role.ASSISTANT, Reasoning(text=said)) if said else ()
    if kind == "compaction":
        said = _text_of(item.get("summary")) or "The provider has compacted the conversation."
        return _draft(Role.SYSTEM, Compaction(summary=said, dropped_through=0))
    return _call_drafts(item, kind) if _call_id(item) else ()


def _call_drafts(item: Item, kind: str) -> tuple[MessageDraft, ...]:
    if kind in CALLS_HERE:
        return _draft(Role.TOOL_CALL, _call(item, kind))
    if kind in _OUTPUTS:
        return _draft(Role.TOOL_RESULT, _result(item, item.get("output")))
    if kind not in _CALLS_THERE:
        return ()
    outcome = {name: item[name] for name in _OUTCOMES if item.get(name) is not None}
    result = _result(item, outcome or item.get("status"))
    return (*_draft(Role.TOOL_CALL, _call(item, kind)), *_draft(Role.TOOL_RESULT, result))


def _draft(role: Role, *parts: Part) -> tuple[MessageDraft, ...]:
    return (MessageDraft(role=role, parts=parts),)


def _message(item: Item, media: dict[str, tuple[str, bytes]]) -> tuple[MessageDraft, ...]:
    content, role = item.get("content"), str(item.get("role"))
    if role in {"system", "developer"}:
        said = _text_of(content)
        notice = Notice(code=NoticeCode.INSTRUCTIONS, text=said)
        return _draft(Role.SYSTEM, notice) if said else ()
    ours = Role.USER if role == "user" else Role.ASSISTANT
    if role not in {"user", "assistant"}:
        return ()
    pieces = [content] if isinstance(content, str) else content
    parts = [part for each in pieces or () if (part := _part(each, media)) is not None]
    return _draft(ours, *parts) if parts else ()


def _part(piece: Any, media: dict[str, tuple[str, bytes]]) -> Text | Media | None:
    if isinstance(piece, str):
        return Text(text=_clean(piece)) if piece else None
    if not isinstance(piece, Mapping):
        return None
    url = piece.get("image_url") or piece.get("file_data") or piece.get("file_url")
    if isinstance(url, str):
        found = _media(url, piece.get("filename"), media)
        return found or Text(text=_clean(f"[{piece.get('filename') or url[:200]}]"))
    said = _text_of([piece])
    return Text(text=said) if said else None


def _media(url: str, name: Any, media: dict[str, tuple[str, bytes]]) -> Media | None:
    state, comma, data = url.partition(",")
    if not (state.startswith(_DATA) and state.endswith(";base64") and comma):
        return None
    mime_type = state.removeprefix(_DATA).partition(";")[0].lower()
    try:
        content = b64decode(data, validate=True)
    except ValueError:
        return None
    if not is_media_type(mime_type) or not 0 < len(content) <= MEDIA_LARGEST:
        return None
    ref = media_handle(content)
    media[ref] = mime_type, content
    shown = _clean(str(name))[:255] if name else None
    return Media(mime_type=mime_type, ref=ref, name=shown, byte_length=len(content))


def _call(item: Item, kind: str) -> ToolCall:
    name = str(item.get("name") or kind.removesuffix("_call"))
    return ToolCall(
        id=CallId(_call_id(item)), name=_clean(name)[:255] or kind, arguments=_arguments(item)
    )


def _arguments(item: Item) -> dict[str, Any]:
    given = item.get("arguments")
    if isinstance(given, str):
        return parse_arguments(given)
    if isinstance(given, Mapping):
        return dict(given)
    return {name: item[name] for name in _ARGUMENTS if item.get(name) is not None}


def parse_arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call; what is no JSON object is kept as its text."""
    try:
        found = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return {"_raw": _clean(text)}
    return found if isinstance(found, dict) else {"_raw": _clean(text)}


def _result(item: Item, output: Any) -> ToolResult:
    known = {UNKNOWN_OUTCOME: ResultStatus.UNKNOWN, NOT_RUN: ResultStatus.SKIPPED}
    status = known.get(output, ResultStatus.OK) if isinstance(output, str) else ResultStatus.OK
    error = None
    if status is not ResultStatus.OK:
        code = ResultCode.UNKNOWN if status is ResultStatus.UNKNOWN else ResultCode.ABORTED
        error = ToolError(code=code, message=str(output))
    return ToolResult(
        call_id=CallId(_call_id(item)),
        name=str(item.get("name") or ""),
        status=status,
        result=None if error else output,
        error=error,
    )


def _text_of(content: Any) -> str:
    """Return the texts of a content: a string, or a list of pieces."""
    if isinstance(content, str):
        return _clean(content)
    if not isinstance(content, Sequence):
        return ""
    pieces = [piece for piece in content if isinstance(piece, Mapping)]
    texts = [
        piece.get("text") or piece.get("refusal") or piece.get("transcript") for piece in pieces
    ]
    return _clean("\n\n".join(text for text in texts if isinstance(text, str)))


def _clean(text: str) -> str:
    """Return a text as it can be stored: without NUL and lone surrogates."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode()
