"""Secrets that are available before the store is open, for keys, files and logs."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.services.secrets import Secrets


def secrets_here() -> "Secrets":
    """Return the secrets of this machine; those of the environment are loaded at once."""
    from holdfast import keychain
    from holdfast.llm.providers import KEY_VARIABLES
    from holdfast.services.secrets import Secrets

    return Secrets(keychain, os.environ, KEY_VARIABLES)
