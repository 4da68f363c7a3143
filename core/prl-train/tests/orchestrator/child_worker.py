"""The child of the test's executor: reads a spec and then jobs, one JSON line each, and answers with bytes."""

from __future__ import annotations

import asyncio
import json
import sys

from prl.contracts import RolloutJob, WorkerSpec
from prl.plugin.worker import make_worker
from prl_train.executor import encode_rollout


def answer(data: bytes) -> None:
    sys.stdout.buffer.write(len(data).to_bytes(4, "big") + data)
    sys.stdout.buffer.flush()


async def main() -> None:
    lines = iter(sys.stdin.buffer.readline, b"")
    worker = make_worker(WorkerSpec(**json.loads(next(lines))))
    await worker.start()
    answer(b"up")
    for line in lines:
        answer(encode_rollout(await worker.play(RolloutJob(**json.loads(line)))))
    await worker.close()


if __name__ == "__main__":
    asyncio.run(main())
