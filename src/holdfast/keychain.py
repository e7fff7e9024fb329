"""The operating system's keychain, where it has one that keeps secrets secret.

Only known backends are used: the library behind this would otherwise pick a plain-text file. Every
function here may wait for a person to unlock something, so call it in a thread.
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
    """Tell whether there is a keychain that can be trusted."""
    # Importing the library is slow, and without a session bus Linux has no keychain.
    if sys.platform.startswith("linux") and not os.environ.get("DBUS_SESSION_BUS_ADDRESS"):
        return False
    import keyring

    backend = type(keyring.get_keyring())
    return f"{backend.__module__}.{backend.__qualname__}" in _TRUSTED


def read(account: str) -> str | None:
    """Return the secret of an account; nothing where the keychain is locked or missing."""
    if not is_available():
        return None
    import keyring

    try:
        return keyring.get_password(SERVICE, account)
    # Neither chained nor shown, whatever it is: what a keychain says may hold what it keeps.
    except Exception:  # noqa: BLE001
        log.warning("the keychain did not answer")
        return None


def write(account: str, secret: str) -> bool:
    """Keep a secret; `False` where there is no keychain that takes it."""
    if not is_available():
        return False
    import keyring

    try:
        keyring.set_password(SERVICE, account, secret)
    except Exception:  # noqa: BLE001 — as above
        log.warning("the keychain did not take the secret")
        return False
    return True


def remove(account: str) -> bool:
    """Forget a secret; `False` where there is none, or no keychain that gives it up."""
    if not is_available():
        return False
    import keyring

    try:
        keyring.delete_password(SERVICE, account)
    except Exception:  # noqa: BLE001 — as above
        log.warning("the keychain did not give the secret up")
        return False
    return True
