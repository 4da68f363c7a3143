"""The tokenizer room: one adapter over tokenizers, tiktoken or a bring-your-own object, and a proven fast backend."""

from .adapter import Tokenizer
from .backend import Backend, BringYourOwn
from .load import as_tokenizer, load_tokenizer

__all__ = ["Backend", "BringYourOwn", "Tokenizer", "as_tokenizer", "load_tokenizer"]
