"""What every engine that serves prl's routes has in common: bodies, errors, retries, limits, checkpoints.

FastAPI, which only `http` and `routes` here import, comes with the extra `prl-core[serving]`.
"""
