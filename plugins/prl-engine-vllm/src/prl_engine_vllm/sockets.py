"""A folder for a server's own sockets: vLLM leaves them behind, however it ends; one of their own can be removed."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from pathlib import Path

VARIABLE = "VLLM_RPC_BASE_PATH"
"""Environment variable with the folder; vLLM's default is that of temporary files."""

LONGEST = 103  # bytes of a socket's path, on the system that allows least
NAME = len(f"/{uuid.UUID(int=0)}")  # of each socket


def make_folder(instance: str) -> Path | None:
    """Make the folder of the server with this token; return None where its sockets' paths would be too long."""
    folder = folder_of(instance)
    if len(os.fsencode(folder)) + NAME > LONGEST:
        return None
    folder.mkdir(mode=0o700)
    return folder


def remove_folder(instance: str) -> None:
    """Remove the folder, where there is one; the launcher does, and a server whose launcher was killed."""
    shutil.rmtree(folder_of(instance), ignore_errors=True)


def folder_of(instance: str) -> Path:
    """Return where the folder of the server with this token is, if there is one."""
    return Path(tempfile.gettempdir()) / f"prl-{instance[:12]}"
