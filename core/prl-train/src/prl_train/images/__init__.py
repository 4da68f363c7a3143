"""What a vision-language model is trained on beside ids: its images, prepared by its own processor."""

from __future__ import annotations

from .attach import ImageAttacher
from .cache import ImageCache, ImageFeatures

__all__ = ["ImageAttacher", "ImageCache", "ImageFeatures"]
