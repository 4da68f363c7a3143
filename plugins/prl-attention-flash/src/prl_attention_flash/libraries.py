"""The three libraries: where their functions are, and how a kernel is made of them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from prl.types import PluginError

from .passes import FlashPasses


@dataclass(frozen=True, slots=True)
class Library:
    """One generation: the distributions that bring it, its module and its two functions."""

    name: str
    distributions: tuple[str, ...]
    module: str
    forward: str
    backward: str

    def load(self) -> FlashPasses:
        """Import the library and bind its functions; raise `PluginError` where it is not there, or not as known."""
        try:
            module = importlib.import_module(self.module)
        except (ImportError, OSError, RuntimeError) as error:  # a wheel for another torch or CUDA raises the latter two
            raise PluginError(
                f"the attention kernel {self.name!r} cannot import {self.module}: {error}",
                where=self.module,
                next_step=f"install {' or '.join(self.distributions)} built for this torch and CUDA",
            ) from error
        return FlashPasses(self.name, module, self.forward, self.backward, version=self.version())

    def version(self) -> str:
        """Return the installed version, or "unknown" where no distribution says."""
        for name in self.distributions:
            try:
                return version(name)
            except PackageNotFoundError:
                continue
        return "unknown"


FLASH_2 = Library(
    "flash-2",
    ("flash-attn",),
    "flash_attn.flash_attn_interface",
    "_flash_attn_varlen_forward",
    "_flash_attn_varlen_backward",
)
FLASH_3 = Library(
    "flash-3",
    ("flash-attn-3", "flash_attn_3"),
    "flash_attn_interface",
    "_flash_attn_forward",
    "_flash_attn_backward",
)
FLASH_4 = Library(
    "flash-4",
    ("flash-attn-4",),
    "flash_attn.cute.interface",
    "_flash_attn_fwd",
    "_flash_attn_bwd",
)
LIBRARIES = (FLASH_2, FLASH_3, FLASH_4)


def create_flash_2() -> FlashPasses:
    """Return FlashAttention 2."""
    return FLASH_2.load()


def create_flash_3() -> FlashPasses:
    """Return FlashAttention 3."""
    return FLASH_3.load()


def create_flash_4() -> FlashPasses:
    """Return FlashAttention 4."""
    return FLASH_4.load()
