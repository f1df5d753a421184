"""bench/compare.py and its parts lie beside this; without a GPU Triton, which reads this once, interprets."""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
try:
    import torch

    has_gpu = torch.cuda.is_available()
except ImportError:
    has_gpu = False
if not has_gpu:
    os.environ["TRITON_INTERPRET"] = "1"
