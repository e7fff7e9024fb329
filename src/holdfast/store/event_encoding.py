"""Compact encoding of event payloads: without defaults and without values of other columns.

Most fields of a turn are zero or empty. Decoding fills in the omitted defaults, so the defaults in
this module must never change.
"""

import re
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Struct

from holdfast.domain.costs import Usage
from holdfast.domain.events import (
    Failure,
    Payload,
    StepEnded,
    StepStarted,
    TurnEnded,
    encode_payload,
    name_of,
)
from holdfast.domain.ids import MessageId, ModelId
from holdfast.domain.sessions import StopReason
from holdfast.store.database import UUID, format_id, uuid_bytes

# Ids that may follow the event name in a payload; each is stored as 16 bytes.
_IDS: Final = re.compile(f',"message_id":"({UUID})"(?:,"model_id":"({UUID})")?'.encode())
ID_BYTES: Final = 16


class KeptUsage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Stored form of `Usage`."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0


class KeptStepStarted(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag=name_of(StepStarted)
):
    """Stored form of `StepStarted`."""

    message_id: MessageId
    model_id: ModelId
    step: int
    model: str = ""
    bound: int = 0


class KeptStepEnded(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=name_of(StepEnded)):
    """Stored form of `StepEnded`."""

    message_id: MessageId | None = None
    step: int
    usage: KeptUsage | None = None
    microcents: int = 0
    priced: bool = False


class KeptTurnEnded(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=name_of(TurnEnded)):
    """Stored form of `TurnEnded`."""

    stop_reason: StopReason
    usage: KeptUsage = KeptUsage()
    microcents: int = 0
    priced: bool = True
    more_turns: bool = False
    failure: Failure | None = None
    estimated: bool = False


_encode: Final = msgspec.json.Encoder().encode


def stored_payload(payload: Payload) -> bytes:
    """Return the stored form of an event payload."""
    match payload:
        case StepStarted():
            return _encode(
                KeptStepStarted(
                    message_id=payload.message_id,
                    model_id=payload.model_id,
                    step=payload.step,
                    model=payload.model,
                    bound=payload.bound,
                )
            )
        case StepEnded():
            usage = None if payload.usage is None else _kept(payload.usage)
            return _encode(
                KeptStepEnded(
                    step=payload.step,
                    message_id=payload.message_id,
                    usage=usage,
                    microcents=payload.microcents,
                    priced=payload.priced,
                )
            )
        case TurnEnded():
            return _encode(
                KeptTurnEnded(
                    stop_reason=payload.stop_reason,
                    usage=_kept(payload.usage),
                    microcents=payload.microcents,
                    priced=payload.priced,
                    more_turns=payload.more_turns,
                    failure=payload.failure,
                    estimated=payload.estimated,
                )
            )
        case _:
            return encode_payload(payload)


def divided(name: str, payload: bytes) -> tuple[bytes | None, bytes]:
    """Split a payload into its leading ids and the rest after the event name and the ids."""
    start = len(_named(name))
    found = _IDS.match(payload, start)
    if found is None:
        return None, payload[start:]
    return uuid_bytes(b"".join(found.groups(b"")).decode()), payload[found.end() :]


def joined(name: str, ids: bytes | None, rest: bytes) -> bytes:
    """Rebuild the payload that `divided` has split."""
    if not ids:
        return _named(name) + rest
    fields = f',"message_id":"{format_id(ids[:ID_BYTES])}"'
    if len(ids) > ID_BYTES:
        fields += f',"model_id":"{format_id(ids[ID_BYTES:])}"'
    return _named(name) + fields.encode() + rest


@lru_cache(maxsize=256)
def _named(name: str) -> bytes:
    return b'{"type":"%b"' % name.encode()


def _kept(usage: Usage) -> KeptUsage:
    return KeptUsage(
        input=usage.input,
        output=usage.output,
        cache_read=usage.cache_read,
        cache_write=usage.cache_write,
        reasoning=usage.reasoning,
    )
