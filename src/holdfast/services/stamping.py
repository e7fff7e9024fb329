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
from holdfast.ports import Clock, Randomness


class IdFactory:
    """Makes ids that sort by the time they were made, and secrets that nobody can guess."""

    def __init__(self, clock: Clock, randomness: Randomness) -> None:
        self._clock = clock
        self._randomness = randomness

    def new(self) -> str:
        """Return a new UUID, version 7."""
        return uuid7(microseconds(self._clock.now()) // 1000, self._randomness.bits(74))

    def secret(self) -> str:
        """Return the secret of a new token."""
        return secret_of(self._randomness.bits(SECRET_BITS))


# News that hold no words but our own.
PLAIN: Final = (TurnStarted, StepEnded, MessageAppended)


class Stamping(Struct, frozen=True, kw_only=True):
    """A clock, new ids, and who knows the secrets."""

    clock: Clock
    id_factory: IdFactory
    # Asked each time, because a secret may have become known since.
    scrubber: Callable[[], Scrubber] = Scrubber


def redact(draft: MessageDraft, scrubber: Scrubber) -> tuple[MessageDraft, bytes]:
    """Return the draft and its stored bytes, without the secrets that we hold."""
    encoded = encode_parts(draft.parts)
    content = scrubber.clean_json(encoded)
    # The same object, as good as always: only then nothing has to be read again.
    if content is encoded:
        return draft, encoded
    return replace(draft, parts=decode_parts(content)), content


def mask_credentials(payload: Payload, scrubber: Scrubber) -> Payload:
    """Return news without secrets, and without what only looks like one."""
    if isinstance(payload, PLAIN):
        return payload
    encoded = encode_payload(payload)
    told = scrubber.clean_json(encoded)
    # Pieces of an answer are left at that: they have to add up to the row, which keeps it.
    if not isinstance(payload, StepDelta):
        told = scrubber.mask(told)
    return payload if told is encoded else decode_payload(told)


def idempotency_key(head: SessionState, call_id: CallId) -> str:
    """Return what one call is known by outside: two owners may have the same ids for theirs."""
    return hashlib.sha256(f"{head.owner}|{head.session_id}|{call_id}".encode()).hexdigest()
