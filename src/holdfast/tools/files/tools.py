"""The file tools of an installation; what each of them does is in its own module."""

import os
from typing import Any

from holdfast.tools.files.access import Doorkeeper, FileSettings
from holdfast.tools.files.listing import listing_tool
from holdfast.tools.files.openat import Kernel, ask_kernel
from holdfast.tools.files.read import reading_tool
from holdfast.tools.files.search import searching_tool
from holdfast.tools.files.write import writing_tools
from holdfast.tools.tool import Tool

__all__ = ["FileSettings", "file_tools", "file_weaknesses"]


def file_tools(settings: FileSettings, kernel: Kernel | None = None) -> tuple[Tool[Any], ...]:
    """Return the tools that read and change files; without a kernel this system's is asked."""
    if not _is_able():
        return ()
    keeper = Doorkeeper(settings, kernel or ask_kernel())
    return (
        reading_tool(keeper),
        listing_tool(keeper),
        searching_tool(keeper),
        *writing_tools(keeper),
    )


def file_weaknesses() -> tuple[str, ...]:
    """Return which promises about files are weaker on this system, in words for a person."""
    if not _is_able():
        return ("There are no file tools: this system opens nothing relative to a directory.",)
    return ask_kernel().weaknesses


def _is_able() -> bool:
    return os.open in os.supports_dir_fd
