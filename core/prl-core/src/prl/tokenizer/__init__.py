"""The tokenizer room."""
