"""Whether an attention kernel can train on a machine, from its record alone: nothing is imported."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .records import AttentionEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The devices that torch finds: their types, and the compute capability (major, minor) of the CUDA ones."""

    devices: tuple[str, ...] = ("cpu",)
    capabilities: tuple[tuple[int, ...], ...] = ()


def obstacle(record: AttentionEntry, machine: Machine, *, missing: Collection[str] = ()) -> str:
    """Say why a kernel cannot train on any device of a machine; "" where it can. `missing` are modules it lacks."""
    if missing:
        return f"missing module {', '.join(missing)}" + (f": {record.install}" if record.install else "")
    usable = [device for device in machine.devices if device in (record.devices or machine.devices)]
    if not usable:
        return f"needs {' or '.join(record.devices)}, and torch finds {', '.join(machine.devices)}"
    if all(device in record.forward_only for device in usable):
        return f"has no backward on {' or '.join(usable)}, and cannot train"
    if usable == ["cuda"]:
        return _too_old_or_new(record, machine)
    return ""


def _too_old_or_new(record: AttentionEntry, machine: Machine) -> str:
    """Compare compute capabilities; one device that fits is enough."""
    least, below = record.compute_capability, record.compute_capability_below
    if not machine.capabilities or any(
        (not least or one >= least) and (not below or one < below) for one in machine.capabilities
    ):
        return ""
    found = ", ".join(_dotted(one) for one in machine.capabilities)
    wanted = f"of {_dotted(least)} or more" if least else ""
    wanted += f"{' and ' if least and below else ''}{f'below {_dotted(below)}' if below else ''}"
    return f"needs a compute capability {wanted}, and the device has {found}"


def misfits(
    record: AttentionEntry,
    *,
    device: str,
    dtype: str,
    head_size: int | None = None,
    features: Collection[str] = (),
    training: bool = True,
) -> list[str]:
    """Say what of a model and its setting a kernel does not serve; empty where it serves all.

    A kernel with "lse" is given sinks by it.
    """
    found = []
    if record.devices and device not in record.devices:
        found.append(f"does not run on device {device!r} (it offers {', '.join(record.devices)})")
    if record.dtypes and dtype not in record.dtypes:
        found.append(f"does not run on dtype {dtype!r} (it offers {', '.join(record.dtypes)})")
    if training and device in record.forward_only:
        found.append(f"has no backward on {device}")
    if head_size and record.head_size_max and head_size > record.head_size_max:
        found.append(f"takes heads of at most {record.head_size_max}, and the model's have {head_size}")
    if head_size and head_size % record.head_size_multiple:
        found.append(f"takes heads of a multiple of {record.head_size_multiple}, and the model's have {head_size}")
    offered = {*record.features, *(("sinks",) if "lse" in record.features else ())}
    found += [f"has no {feature!r}" for feature in features if feature not in offered]
    return found


def _dotted(capability: tuple[int, ...]) -> str:
    return ".".join(map(str, capability))
