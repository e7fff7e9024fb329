"""Models as a person names them: a script's file becomes an absolute path where it is named.

Whoever plays the turn may run in another folder than whoever named the file.
"""

import os
from pathlib import Path


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
