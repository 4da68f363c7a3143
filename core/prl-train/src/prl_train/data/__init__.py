"""Training data: fit samples to a length, pack them, read supervised rows."""

from .balance import balance, dummy_row, row_cost
from .fit import FitResult, Fitted, fit_sample, fit_samples
from .open_rows import open_rows
from .packing import pack, pack_supervised, pack_supervised_batch
from .row_mix import RowMix
from .row_stores import DatasetRows, JsonlRows, RowStore
from .sft_packer import SftPacker
from .sft_rows import SftRow, SftSample, SupervisedSample, normalise_message, read_row
from .sft_samples import SampleBuilder
from .sft_source import IndexedSource, LocalBuilder, PooledBuilder, SampleSource

__all__ = [
    "DatasetRows",
    "FitResult",
    "Fitted",
    "IndexedSource",
    "JsonlRows",
    "LocalBuilder",
    "PooledBuilder",
    "RowMix",
    "RowStore",
    "SampleBuilder",
    "SampleSource",
    "SftPacker",
    "SftRow",
    "SftSample",
    "SupervisedSample",
    "balance",
    "dummy_row",
    "fit_sample",
    "fit_samples",
    "normalise_message",
    "open_rows",
    "pack",
    "pack_supervised",
    "pack_supervised_batch",
    "read_row",
    "row_cost",
]
