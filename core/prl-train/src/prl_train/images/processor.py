"""The model's own image processor, read from its directory when the first image comes."""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import threading
from pathlib import Path
from typing import Any

from prl.types import ConfigError, RenderError

_FILES = ("preprocessor_config.json", "processor_config.json")


class ModelImageProcessor:
    """Turns an image's file into what the model takes, as its processor in transformers does.

    Servers use the processor that is built on torchvision. Without torchvision here, the one built on Pillow is used,
    whose resizing differs by rounding; the number of patches is the same. `backend` says which it is.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self.backend = ""
        self._processor: Any = None
        self._lock = threading.Lock()

    def __call__(self, data: bytes) -> tuple[Any, tuple[int, int, int]]:
        """Return `pixel_values` [patches, values] and the grid of patches; raise `RenderError` for no image."""
        image = _opened(data)
        made = self._loaded()(images=[image], return_tensors="np")
        missing = [name for name in ("pixel_values", "image_grid_thw") if name not in made]
        if missing:
            raise ConfigError(
                f"the model's image processor gives no {', '.join(missing)}",
                where=f"{self.model}, {type(self._processor).__name__}",
                next_step="train images with a model that takes patches with a grid, such as the Qwen-VL families",
            )
        time, height, width = (int(size) for size in made["image_grid_thw"][0])
        return made["pixel_values"], (time, height, width)

    def _loaded(self) -> Any:
        with self._lock:  # transformers' lazy modules are not safe to import from several threads
            if self._processor is None:
                self._processor = self._load()
        return self._processor

    def _load(self) -> Any:
        transformers = importlib.import_module("transformers")
        if importlib.util.find_spec("torchvision") is not None:
            self.backend = "torchvision"
            # said, so that nobody is asked at a terminal
            return self._from(transformers.AutoImageProcessor, trust_remote_code=False)
        self.backend = "pillow"
        base = self._class_name().removesuffix("Fast").removesuffix("Pil")
        for name in (f"{base}Pil", base):  # the name since transformers 5, and the one before
            found = getattr(transformers, name, None)
            if found is not None:
                return self._from(found)
        raise ConfigError(
            f"transformers has no image processor {base!r} that does without torchvision",
            where=self.model,
            next_step="pip install torchvision",
        )

    def _from(self, factory: Any, **how: Any) -> Any:
        try:
            return factory.from_pretrained(self.model, **how)
        except (OSError, ValueError, ImportError) as error:
            raise ConfigError(
                f"the model's image processor cannot be loaded: {str(error).strip().splitlines()[0]}",
                where=self.model,
                next_step="the directory needs the preprocessor_config.json that was published with the model",
            ) from error

    def _class_name(self) -> str:
        """Return the processor's class as the model's files name it."""
        cached_file = importlib.import_module("transformers.utils.hub").cached_file
        for name in _FILES:
            path = cached_file(self.model, name, _raise_exceptions_for_missing_entries=False)
            if path is not None:
                values = json.loads(Path(path).read_text(encoding="utf-8"))
                values = values.get("image_processor", values)
                if found := values.get("image_processor_type"):
                    return str(found)
        raise ConfigError(
            "the model names no image processor",
            where=f"{self.model}: {' or '.join(_FILES)}",
            next_step="the directory needs the preprocessor_config.json that was published with the model",
        )


def _opened(data: bytes) -> Any:
    try:
        images = importlib.import_module("PIL.Image")
    except ImportError as error:
        raise ConfigError(
            "images are read with Pillow, which is not installed",
            where="PIL",
            next_step='pip install "prl-train[images]"',
        ) from error
    try:
        return images.open(io.BytesIO(data)).convert("RGB")
    except (OSError, ValueError, images.DecompressionBombError) as error:
        raise RenderError(
            f"an image cannot be read: {error}", where=f"its file of {len(data)} bytes", next_step="send a whole image"
        ) from error
