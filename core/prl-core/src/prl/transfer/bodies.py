"""The bodies of the routes through which an engine is offered weights and told to receive them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from prl.types import Seats, TensorSpec, WeightManifest, WeightTransfer

INT64 = 2**63


class TensorBody(BaseModel):
    """One tensor on offer."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, description="Its name in the checkpoint.")
    dtype: str = Field(description='torch\'s name of its type, such as "bfloat16".')
    shape: tuple[Annotated[int, Field(ge=0)], ...]
    size: int = Field(ge=0, description="Bytes.")


class OfferBody(BaseModel):
    """`POST /v1/weights/offer`: what a transfer would bring, in the order in which it comes."""

    model_config = ConfigDict(extra="forbid")

    # Spelled out in the schema: servers put it inside their own document, where a reference would point nowhere.
    tensors: Annotated[
        list[TensorBody],
        WithJsonSchema({"type": "array", "minItems": 1, "items": TensorBody.model_json_schema()}),
    ] = Field(min_length=1)

    def manifest(self) -> WeightManifest:
        """Return the offer as receivers keep it."""
        return WeightManifest(tuple(TensorSpec(one.name, one.dtype, one.shape, one.size) for one in self.tensors))


class OfferAnswer(BaseModel):
    """Answer of `POST /v1/weights/offer`: the device of each process that would receive."""

    devices: tuple[str, ...]
    identity: str

    @classmethod
    def of(cls, seats: Seats) -> OfferAnswer:
        """Return the answer that names these seats."""
        return cls(devices=seats.devices, identity=seats.identity)


class TransferBody(BaseModel):
    """`POST /v1/weights/receive`: receive the tensors of the last offer, and load them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    version: int = Field(ge=0, lt=INT64, description="What later answers carry as weight_version.")
    digest: str = Field(description="Digest of the offer.")
    address: str = Field(pattern=r"^.+:\d{1,5}$", description='"host:port" of the sender\'s store.')
    offer: str = Field(min_length=1, description="Key that the sender sets in its store when it begins.")
    group: str = Field(min_length=1, description="Name of the process group; one that is known is used again.")
    world: int = Field(ge=2, description="Processes of the group, with the sender.")
    backend: Literal["gloo", "nccl"]
    bucket_bytes: int = Field(ge=16, description="Bytes that are sent at once.")
    seconds: float = Field(gt=0, description="Limit of every wait.")

    def transfer(self) -> WeightTransfer:
        """Return the transfer as receivers are told of it."""
        return WeightTransfer(**self.model_dump())
