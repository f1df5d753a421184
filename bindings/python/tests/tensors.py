"""NumPy's arrays of the tests as torch's tensors, and back; NumPy's bf16 is of ml_dtypes, so it goes by its bits."""

import ml_dtypes
import numpy as np
import tessella
import torch


def tensor(array, device):
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(array).to(device)


def array(tensor):
    if tensor.dtype == torch.bfloat16:
        return tensor.cpu().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.cpu().numpy()


def options(given, device):
    """The options of a call with every array in them as a tensor."""
    return {name: _value(value, device) for name, value in given.items()}


def _value(value, device):
    if isinstance(value, np.ndarray):
        return tensor(value, device)
    if isinstance(value, tessella.Mask):
        mask = tessella.Mask()
        mask.numbers = value.numbers
        mask.arrays = {name: tensor(part, device) for name, part in value.arrays.items() if part is not None}
        return mask
    return value


def close(got, expected):
    return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(got, expected))
