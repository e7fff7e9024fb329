"""Client of a Holdfast server: the API over HTTP, with event streams that resume."""

from holdfast.client.remote import RemoteHoldfast, connect
from holdfast.client.requests import Timeouts

__all__ = ["RemoteHoldfast", "Timeouts", "connect"]
