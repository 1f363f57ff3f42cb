"""What a device can do, as far as choices depend on it. It does not choose."""

import os

import torch

from regard.training.choices.choice import Device


def about(device: torch.device, count: int = 1) -> Device:
    """What is known of a device, of which there are so many."""
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        return Device("cuda", memory, torch.cuda.is_bf16_supported(including_emulation=False), count)
    return Device(device.type, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), False, count)
