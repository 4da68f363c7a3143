"""The control tokens of harmony."""

from __future__ import annotations

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN, END_OF_TEXT = "<|end|>", "<|call|>", "<|return|>", "<|endoftext|>"

CONTROL_TOKENS = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN, END_OF_TEXT)
STOP_TOKENS = (RETURN, CALL, END_OF_TEXT)
