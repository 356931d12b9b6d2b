"""What the products of networks round to."""

import torch

_INSTRUCTIONS = "avx512_bf16", "amx_bf16"
"""Of processors on which 16 bits have been measured to be faster."""


def rounding(wanted: str, device: torch.device) -> torch.dtype | None:
    """Return what products round to; None for no rounding of ours, as TF32 is CUDA's.

    Args:
        wanted: ``compute.precision``. ``auto`` rounds to 16 bits where that is faster.
        device: Where the products are made.
    """
    fast = wanted == "auto" and _multiplies_bfloat16(device)
    return torch.bfloat16 if fast or wanted == "bfloat16" else None


def _multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for it. Without these it is slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    there = torch.cpu.get_capabilities()
    return any(there.get(name, False) for name in _INSTRUCTIONS)
