"""Configuration: one frozen value; flags > environment > file > defaults.

Adapters receive plain arguments, never the Config. The rules of each setting are in
`validation.py`, its keys and variables in `keys.py`, and reading of the file in `files.py`.
"""

from holdfast.config.keys import SETTING_KEYS, SettingKey
from holdfast.config.models import absolute_model
from holdfast.config.settings import (
    Acp,
    Chat,
    Config,
    Credential,
    default_home,
    duration,
    explain,
    load,
    setting_types,
    setting_value,
)
from holdfast.config.validation import McpServer, SecretEntry

__all__ = [
    "SETTING_KEYS",
    "Acp",
    "Chat",
    "Config",
    "Credential",
    "McpServer",
    "SecretEntry",
    "SettingKey",
    "absolute_model",
    "default_home",
    "duration",
    "explain",
    "load",
    "setting_types",
    "setting_value",
]
