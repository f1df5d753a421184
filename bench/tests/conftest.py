"""bench/compare.py and its parts are imported from where they lie; Triton, which reads this once, interprets."""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
os.environ["TRITON_INTERPRET"] = "1"
