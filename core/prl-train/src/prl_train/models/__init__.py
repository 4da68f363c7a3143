"""Models: load real ones, or make tiny ones from scratch."""

from .load import AUXILIARY_FILES, load_model, source_directory
from .scratch import create_tiny_qwen3, train_small_tokenizer

__all__ = ["AUXILIARY_FILES", "create_tiny_qwen3", "load_model", "source_directory", "train_small_tokenizer"]
