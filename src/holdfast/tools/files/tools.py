"""The file tools of an installation; each tool is implemented in its own module."""

import os
from typing import Any

from holdfast.tools.files.access import FileAccess, FileSettings
from holdfast.tools.files.listing import list_directory_tool
from holdfast.tools.files.openat import KernelSupport, probe_kernel
from holdfast.tools.files.read import read_file_tool, read_media_tool
from holdfast.tools.files.search import find_text_tool
from holdfast.tools.files.write import write_tools
from holdfast.tools.tool import LocalTool

__all__ = ["FileSettings", "file_tools", "file_weaknesses"]


def file_tools(
    settings: FileSettings, kernel: KernelSupport | None = None
) -> tuple[LocalTool[Any], ...]:
    """Return the tools that read and change files; without a `kernel` the system is probed."""
    if not _is_able():
        return ()
    file_access = FileAccess(settings, kernel or probe_kernel())
    return (
        read_file_tool(file_access),
        read_media_tool(file_access),
        list_directory_tool(file_access),
        find_text_tool(file_access),
        *write_tools(file_access),
    )


def file_weaknesses() -> tuple[str, ...]:
    """Return which file protections are missing on this system, as display text."""
    if not _is_able():
        return (
            (
                "File tools are not available: this system cannot open files relative to a "
                "directory."
            ),
        )
    return probe_kernel().weaknesses


def _is_able() -> bool:
    return os.open in os.supports_dir_fd
