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
KEY = secrets.token_bytes(32)


def furnish(home: Path) -> Path:
    """Put an empty store and its key there, unless something is, or the store is a database."""
    if not home.exists() and "HOLDFAST_DATABASE_URL" not in os.environ:
        home.mkdir(mode=0o700, parents=True)
        if os.environ.get("HOLDFAST_ENCRYPTION") == "off":
            put_store(home / STORE_NAME, None)
        else:
            put_store(home / STORE_NAME, KEY)
            (home / KEY_NAME).write_text(f"{KEY.hex()}\n")
            (home / KEY_NAME).chmod(0o600)
    return home


def put_store(file: Path, key: bytes | None) -> None:
    """Put an empty store there that was made with a key, or without one."""
    shutil.copy(_made(key) / STORE_NAME, file)


@cache
def _made(key: bytes | None) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-new-"))
    atexit.register(shutil.rmtree, folder)
    apart = LoopApart()
    apart.run(SqliteStore(folder / STORE_NAME, key).close())
    apart.close()
    return folder
