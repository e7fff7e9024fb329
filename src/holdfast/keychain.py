"""The operating system's keychain, if it has one that encrypts secrets.

Only known backends are used, because `keyring` would otherwise fall back to a plain-text file.
Every function may block until the user unlocks the keychain, so call it in a thread.
"""

import logging
import os
import sys
from typing import Final

log = logging.getLogger(__name__)

SERVICE: Final = "holdfast"
_TRUSTED: Final = frozenset(
    {
        "keyring.backends.macOS.Keyring",
        "keyring.backends.SecretService.Keyring",
        "keyring.backends.libsecret.Keyring",
        "keyring.backends.kwallet.DBusKeyring",
        "keyring.backends.Windows.WinVaultKeyring",
    }
)


def is_available() -> bool:
    """Return whether a trusted keychain is available."""
    # Checked first, because the import is slow, and Linux has no keychain without a session bus.
    if sys.platform.startswith("linux") and not os.environ.get("DBUS_SESSION_BUS_ADDRESS"):
        return False
    import keyring

    backend = type(keyring.get_keyring())
    return f"{backend.__module__}.{backend.__qualname__}" in _TRUSTED


def read(account: str) -> str | None:
    """Return the secret of an account; `None` if the keychain is locked or missing."""
    if not is_available():
        return None
    import keyring

    try:
        return keyring.get_password(SERVICE, account)
    # Neither chained nor logged, because the message of a keychain error may contain the secret.
    except Exception:  # noqa: BLE001
        log.warning("the keychain could not be read")
        return None


def write(account: str, secret: str) -> bool:
    """Store a secret; `False` if no keychain accepts it."""
    if not is_available():
        return False
    import keyring

    try:
        keyring.set_password(SERVICE, account, secret)
    except Exception:  # noqa: BLE001 — as above
        log.warning("the keychain did not store the secret")
        return False
    return True


def remove(account: str) -> bool:
    """Delete a secret; `False` if there is none, or the keychain refuses."""
    if not is_available():
        return False
    import keyring

    try:
        keyring.delete_password(SERVICE, account)
    except Exception:  # noqa: BLE001 — as above
        log.warning("the keychain did not delete the secret")
        return False
    return True
