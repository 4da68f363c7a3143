"""Weights over a process group, for both ends. torch is handed in by whoever has it: this package imports none."""

from .bodies import OfferAnswer, OfferBody, TransferBody
from .group import SENDER, GroupError, TransferGroup, local_address
from .receiver import WeightIntake, device_name

__all__ = [
    "SENDER",
    "GroupError",
    "OfferAnswer",
    "OfferBody",
    "TransferBody",
    "TransferGroup",
    "WeightIntake",
    "device_name",
    "local_address",
]
