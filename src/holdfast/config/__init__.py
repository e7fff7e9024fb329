"""Configuration: one frozen value; flags > environment > file > defaults.

Adapters receive plain arguments, never the Config. What each setting may be is in `rules.py`,
where it may be set in `places.py`, how a file is read in `files.py`.
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
