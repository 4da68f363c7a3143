"""A gateway as a process of its own, which kills itself where it is told to.

    python killed_gateway.py OUT VERSION [generating | answering | exporting | exported]

Prints its base URL. What it says is new every time, so that a turn which is sampled twice shows.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from pathlib import Path
from typing import Any, NoReturn

from small import TalkingEngine, small_renderer

from prl import durable
from prl.gateway import Gateway, GatewaySettings
from prl.gateway.export import RolloutFile
from prl.gateway.journal import SessionFile


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process goes on")


class Engine(TalkingEngine):
    dies = False

    async def generate(self, request: Any) -> Any:
        if self.dies:
            die()
        self.lines = [f"said {uuid.uuid4().hex}" for _ in range(request.sampling.n)]
        return await super().generate(request)


def die_when(moment: str, engine: Engine) -> None:
    """Put the death in its place."""
    sampled, append = SessionFile.sampled, RolloutFile.append

    async def answering(file: SessionFile, make: Any) -> None:
        await sampled(file, make)
        die()

    def exporting(file: RolloutFile, record: Any) -> None:
        write = os.write
        durable.os.write = lambda handle, data: write(handle, data[: len(data) // 2]) and die()
        append(file, record)

    def exported(file: RolloutFile, record: Any) -> None:
        append(file, record)
        die()

    engine.dies = moment == "generating"
    if moment == "answering":
        SessionFile.sampled = answering  # type: ignore[method-assign]
    if moment in ("exporting", "exported"):
        RolloutFile.append = {"exporting": exporting, "exported": exported}[moment]  # type: ignore[method-assign]


async def serve(out: Path, version: int, moment: str) -> None:
    engine = Engine()
    engine.version = version
    die_when(moment, engine)
    settings = GatewaySettings(api_keys=("client-key",), operator_key="operator-key", out=out)
    gateway = Gateway(engine, small_renderer(), model="small", settings=settings)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(await gateway.start(), flush=True)
    await stop.wait()
    await gateway.close()


asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""))
