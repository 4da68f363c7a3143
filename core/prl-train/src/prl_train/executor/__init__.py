"""Where rollouts are played: workers made from JSON settings, and the executor that plays them in this process."""

from .codec import decode_rollout, encode_rollout
from .local import LocalExecutor
from .settings import WorkerSettings
from .worker import Worker, create_worker

__all__ = ["LocalExecutor", "Worker", "WorkerSettings", "create_worker", "decode_rollout", "encode_rollout"]
