"""Models as a person names them: a script's file becomes an absolute path where it is named.

Whoever plays the turn may run in another folder than whoever named the file.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.domain.models import OFFLINE

# In the order they are looked for; each a model of the middle size that its vendor keeps.
DEFAULT_MODELS: Final[Mapping[str, str]] = {
    "ANTHROPIC_API_KEY": "anthropic:claude-sonnet-5-5",
    "OPENAI_API_KEY": "openai:gpt-6.1-terra",
    "GEMINI_API_KEY": "google:gemini-3.8-flash",
}


def default_model_for(environment: Mapping[str, str]) -> str:
    """Return who answers when nobody is named: by the first key, else the offline model."""
    found = (model for name, model in DEFAULT_MODELS.items() if environment.get(name, "").strip())
    return next(found, OFFLINE)


def absolute_model(ref: str, *, folder: Path | None = None) -> str:
    """Return the model with its script, if it has one, as a path from a folder, else from here.

    Every other text is returned as it is, right or wrong.
    """
    provider, _, name = ref.partition(":")
    if provider != "scripted" or not name.strip() or Path(name).is_absolute():
        return ref
    try:
        return f"{provider}:{(folder or Path.cwd()) / os.path.expanduser(name)}"
    except OSError:
        # There is no current folder: reading the script says so better.
        return ref
