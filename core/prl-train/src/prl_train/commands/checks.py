"""What `prl doctor` says about the training side."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

NEEDED = ("torch", "transformers", "safetensors", "numpy", "aiohttp")
LEAST_FREE_BYTES = 2 * 1024**3


def training() -> Iterator[tuple[str, str]]:
    """Check the libraries that training needs, the devices it finds, and the room for run folders."""
    missing = False
    for name in NEEDED:
        try:
            yield "ok", f"{name} {version(name)}"
        except PackageNotFoundError:
            missing = True
            yield "fail", f"{name} is not installed; run: pip install prl-train"
    if not missing:
        yield _devices()
    free = shutil.disk_usage(os.getcwd()).free
    status = "ok" if free >= LEAST_FREE_BYTES else "warn"
    yield status, f"{free / 1024**3:.1f} GiB free for run folders in {os.getcwd()}"


def _devices() -> tuple[str, str]:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count:
        return "ok", f"{count} GPU(s), first: {torch.cuda.get_device_name(0)}"
    return "ok", f"no GPU; training runs on {os.cpu_count()} CPU cores (small models only)"
