"""Which card a device is."""

import torch


def capability(device: torch.device) -> int:
    """Compute capability times ten; 0 where there is no card (the interpreter)."""
    if device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor
