"""The run folder: what a run leaves behind, and how its processes hand work to each other."""

from .batch import Progress, StepBatch, decode_batch, encode_batch
from .errors import DeadStateError, PeerError, RunError, StorageError
from .files import read_json, write_bytes, write_json
from .folder import RunFolder
from .status import PartStatus

__all__ = [
    "DeadStateError",
    "PartStatus",
    "PeerError",
    "Progress",
    "RunError",
    "RunFolder",
    "StepBatch",
    "StorageError",
    "decode_batch",
    "encode_batch",
    "read_json",
    "write_bytes",
    "write_json",
]
