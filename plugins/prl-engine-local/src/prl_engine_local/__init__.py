"""The embedded engine: a transformers model on CPU or one GPU, with continuous batching, behind `POST /v1/generate`."""
