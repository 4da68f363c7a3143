"""What trainer and orchestrator tell each other about transfers: small files, a directory for each writer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from prl.types import TensorSpec, WeightManifest, WeightTransfer
from prl_train.run.files import read_json, write_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The trainer can send version `version` of the weights.

    `sender` is another one for every trainer process; `held` names the group that it still has, "" for none.
    """

    id: str
    version: int
    address: str
    device: str
    sender: str
    held: str
    digest: str
    backend: str
    bucket_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The orchestrator's word on an offer: the transfer that engines were told of, or why there is none.

    `done` says that the engines have that version already.
    """

    offer: str
    transfer: WeightTransfer | None = None
    done: bool = False
    reason: str = ""


class TransferBoard:
    """The files of both sides, by who writes them."""

    def __init__(self, directory: Path) -> None:
        self._offer = directory / "trainer" / "offer.json"
        self._manifest = directory / "trainer" / "manifest.json"
        self._answer = directory / "orchestrator" / "answer.json"
        self._wanted = directory / "orchestrator" / "wanted.json"
        self._written = ""

    # -- the trainer's

    def offer(self, offer: Offer, manifest: WeightManifest) -> None:
        """Offer a version; the manifest is written first, where it is another than before."""
        if self._written != manifest.digest:
            write_json(self._manifest, [asdict(spec) for spec in manifest.tensors])
            self._written = manifest.digest
        write_json(self._offer, asdict(offer))

    def withdraw(self) -> None:
        """Take back the offer."""
        self._offer.unlink(missing_ok=True)

    def answer_to(self, offer: str) -> Answer | None:
        """Return the answer to an offer, None before it is there."""
        value = read_json(self._answer)
        if value is None or value["offer"] != offer:
            return None
        transfer = value.pop("transfer")
        return Answer(**value, transfer=None if transfer is None else WeightTransfer(**transfer))

    def wanted(self) -> int | None:
        """Return the version that engines want a directory of, None where they want none."""
        value = read_json(self._wanted)
        return None if value is None else int(value["version"])

    # -- the orchestrator's

    def newest_offer(self) -> Offer | None:
        """Return the offer that stands."""
        value = read_json(self._offer)
        return None if value is None else Offer(**value)

    def manifest(self) -> WeightManifest:
        """Return the manifest of the offer that stands."""
        rows = read_json(self._manifest) or []
        return WeightManifest(tuple(TensorSpec(**{**row, "shape": tuple(row["shape"])}) for row in rows))

    def answer(self, answer: Answer) -> None:
        """Answer an offer."""
        write_json(self._answer, asdict(answer))

    def want(self, version: int | None) -> None:
        """Say that engines want a directory of this version, or that they want none."""
        if version is None:
            self._wanted.unlink(missing_ok=True)
        else:
            write_json(self._wanted, {"version": version})
