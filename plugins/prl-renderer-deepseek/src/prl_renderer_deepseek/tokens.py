"""The control tokens of the DeepSeek formats (with full-width bars and the block ▁)."""

from __future__ import annotations

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
THINK, END_THINK = "<think>", "</think>"
CALLS, END_CALLS = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, END_CALL, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
RESULTS, END_RESULTS = "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"
RESULT, END_RESULT = "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"
DSML, REMINDER = "｜DSML｜", "<｜latest_reminder｜>"

TURN_TOKENS = (BOS, EOS, USER, ASSISTANT)
TOOL_TOKENS = (CALLS, END_CALLS, CALL, END_CALL, SEPARATOR, RESULTS, END_RESULTS, RESULT, END_RESULT)
THINK_TOKENS = (THINK, END_THINK)
V4_TOKENS = (*TURN_TOKENS, *THINK_TOKENS, DSML, REMINDER)
