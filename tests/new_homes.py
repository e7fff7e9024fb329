"""Homes as a first start leaves them, copied: to make each anew takes longer than most tests.

How one is made is what `store/test_new_homes.py` and `store/test_opening.py` are about.
"""

import atexit
import os
import secrets
import shutil
import tempfile
from functools import cache
from pathlib import Path

from holdfast.open_store import STORE_NAME
from holdfast.store.sqlite.store import SqliteStore
from tests.loop_apart import LoopApart

KEY_NAME = "key"


def furnish(home: Path) -> Path:
    """Put an empty store and its key there, unless something is, or the store is a database."""
    if not home.exists() and "HOLDFAST_DATABASE_URL" not in os.environ:
        home.mkdir(mode=0o700, parents=True)
        if os.environ.get("HOLDFAST_ENCRYPTION") == "off":
            return home
        for name in (STORE_NAME, KEY_NAME):
            shutil.copy(_made() / name, home / name)
    return home


@cache
def _made() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-new-"))
    atexit.register(shutil.rmtree, folder)
    key = secrets.token_bytes(32)
    (folder / KEY_NAME).write_text(f"{key.hex()}\n")
    (folder / KEY_NAME).chmod(0o600)
    apart = LoopApart()
    apart.run(SqliteStore(folder / STORE_NAME, key).close())
    apart.close()
    return folder
