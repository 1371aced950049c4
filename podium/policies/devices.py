"""The devices that torch can compute on here; torch is loaded when somebody asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from podium.core.errors import UsageError

if TYPE_CHECKING:
    import torch


def device(name: str) -> torch.device:
    """The device of that name, once it is known to be there; `auto` takes a GPU where there is one."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(name)
        torch.empty(0, device=found)
        return found
    except (RuntimeError, AssertionError):
        raise UsageError(
            f"--device {name} is not available here, expected cpu, auto or a present cuda device"
        ) from None


def gpus() -> int:
    """How many GPUs there are; asking takes none of their memory."""
    import torch

    return torch.cuda.device_count()


def free_bytes(found: torch.device) -> int | None:
    """What a device of limited memory has left; None for main memory, which the operating system looks after."""
    import torch

    return torch.cuda.mem_get_info(found)[0] if found.type == "cuda" else None
