"""Clock, id factory and secret redaction used by every write."""

import hashlib
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.drafts import MessageDraft
from holdfast.domain.events import (
    MessageAppended,
    Payload,
    StepDelta,
    StepEnded,
    TurnStarted,
    decode_payload,
    encode_payload,
)
from holdfast.domain.ids import CallId, uuid7
from holdfast.domain.messages import decode_parts, encode_parts
from holdfast.domain.secrets import Scrubber
from holdfast.domain.sessions import SessionState
from holdfast.domain.time import microseconds
from holdfast.domain.tokens import SECRET_BITS, secret_of
from holdfast.ports.system import Clock, Randomness


class IdFactory:
    """Creates time-ordered ids and unguessable secrets."""

    def __init__(self, clock: Clock, randomness: Randomness) -> None:
        self._clock = clock
        self._randomness = randomness

    def new(self) -> str:
        """Return a new UUID, version 7."""
        return uuid7(microseconds(self._clock.now()) // 1000, self._randomness.bits(74))

    def secret(self) -> str:
        """Return the secret of a new token."""
        return secret_of(self._randomness.bits(SECRET_BITS))


# Events without free text, which need no redaction.
PLAIN: Final = (TurnStarted, StepEnded, MessageAppended)


class Stamping(Struct, frozen=True, kw_only=True):
    """Clock, id factory and secret scrubber."""

    clock: Clock
    id_factory: IdFactory
    # Called for each write, because a secret may have become known since.
    scrubber: Callable[[], Scrubber] = Scrubber


def redact(draft: MessageDraft, scrubber: Scrubber) -> tuple[MessageDraft, bytes]:
    """Return the draft and its stored bytes, without known secrets."""
    encoded = encode_parts(draft.parts)
    content = scrubber.clean_json(encoded)
    # The scrubber returns the same object if nothing matched, which saves decoding it again.
    if content is encoded:
        return draft, encoded
    return replace(draft, parts=decode_parts(content)), content


def mask_credentials(payload: Payload, scrubber: Scrubber) -> Payload:
    """Return the event payload without known secrets, and without text that resembles one."""
    if isinstance(payload, PLAIN):
        return payload
    encoded = encode_payload(payload)
    masked = scrubber.clean_json(encoded)
    # Deltas are not masked by pattern, because they must add up to the stored row.
    if not isinstance(payload, StepDelta):
        masked = scrubber.mask(masked)
    return payload if masked is encoded else decode_payload(masked)


def idempotency_key(head: SessionState, call_id: CallId) -> str:
    """Return the external idempotency key of a call; includes the owner, as ids may repeat."""
    return hashlib.sha256(f"{head.owner}|{head.session_id}|{call_id}".encode()).hexdigest()
