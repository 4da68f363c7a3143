"""vLLM as an engine of prl: a client half without vLLM, and a server half that vLLM loads by its entry points."""
