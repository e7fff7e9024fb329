"""Model references as users write them: a script's path is made absolute where it is given.

The process that runs the turn may have another working directory.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.domain.models import OFFLINE

# In order of precedence; each a mid-size model that its vendor maintains.
DEFAULT_MODELS: Final[Mapping[str, str]] = {
    "ANTHROPIC_API_KEY": "anthropic:claude-sonnet-5-5",
    "OPENAI_API_KEY": "openai:gpt-6.1-terra",
    "GEMINI_API_KEY": "google:gemini-3.8-flash",
}


def default_model_for(environment: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the default model and the first API key that is set, which it was chosen for.

    Without a key it is the offline model.
    """
    found = (
        (model, name) for name, model in DEFAULT_MODELS.items() if environment.get(name, "").strip()
    )
    return next(found, (OFFLINE, None))


def with_provider(name: str) -> str | None:
    """Return a name without a provider as a model of the vendor that names its models so."""
    family = name.partition("-")[0]
    for ref in DEFAULT_MODELS.values():
        provider, _, known = ref.partition(":")
        # Any other text is not repeated, because it may be a key that was pasted by accident.
        if known.partition("-")[0] == family and ":" not in name:
            return f"{provider}:{name}"
    return None


def absolute_model(ref: str, *, folder: Path | None = None) -> str:
    """Return the model with its script path made absolute, from a folder or the working directory.

    Any other text is returned unchanged, valid or not.
    """
    provider, _, name = ref.partition(":")
    if provider != "scripted" or not name.strip() or Path(name).is_absolute():
        return ref
    try:
        return f"{provider}:{(folder or Path.cwd()) / os.path.expanduser(name)}"
    except OSError:
        # Without a working directory, reading the script reports the better error.
        return ref
