"""The API for programs without an event loop: the same verbs, blocking.

`sync.pyi` is generated from the protocol: `python -m tests.api.sync_stub`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.loop_thread import BlockingHoldfast as Holdfast
from holdfast.loop_thread import open_in_thread

__all__ = ["Holdfast", "connect", "open_holdfast"]


@contextmanager
def open_holdfast(*args: Any, **named: Any) -> Iterator[Holdfast]:
    """Open a store, as `holdfast.open_holdfast` does."""
    from holdfast.app import open_holdfast as open_local

    with open_in_thread(open_local(*args, **named)) as hf:
        yield hf


@contextmanager
def connect(*args: Any, **named: Any) -> Iterator[Holdfast]:
    """Connect to a server, as `holdfast.connect` does."""
    from holdfast.client.remote import connect as connect_remote

    with open_in_thread(connect_remote(*args, **named)) as hf:
        yield hf
