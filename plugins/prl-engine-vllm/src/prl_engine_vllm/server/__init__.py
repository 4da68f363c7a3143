"""The server half: routes inside vLLM's API server."""
