"""Training data: fit samples to a length, pack them, read supervised rows."""

from .fit import FitResult, Fitted, fit_sample, fit_samples
from .packing import pack, pack_supervised, pack_supervised_batch
from .sft_packer import IndexedSource, SampleSource, SftPacker
from .sft_rows import SftRow, SftSample, SupervisedSample, build, normalise_message, read_jsonl, read_row

__all__ = [
    "FitResult",
    "Fitted",
    "IndexedSource",
    "SampleSource",
    "SftPacker",
    "SftRow",
    "SftSample",
    "SupervisedSample",
    "build",
    "fit_sample",
    "fit_samples",
    "normalise_message",
    "pack",
    "pack_supervised",
    "pack_supervised_batch",
    "read_jsonl",
    "read_row",
]
