"""Attention for models of Hugging Face's transformers.

>>> import tessella.transformers
>>> model = AutoModel.from_config(config, attn_implementation=tessella.transformers.register())
"""

import inspect

import transformers  # type: ignore[import-not-found, unused-ignore]
from transformers import AttentionInterface, AttentionMaskInterface  # type: ignore[import-not-found, unused-ignore]
from transformers.masking_utils import sdpa_mask  # type: ignore[import-not-found, unused-ignore]

from .._errors import Unsupported
from ._attention import attention_forward
from ._mask import attention_mask

__all__ = ["register"]

_NAME = "tessella"


def register(name: str = _NAME) -> str:
    """Makes `attn_implementation=name` Tessella in every model of transformers that has a choice; returns the name.

    It changes no model: `from_config`, `from_pretrained` and `model.set_attn_implementation` take the name.

    Raises:
        Unsupported: the masks of the installed transformers are asked for with other arguments.
    """
    if not {"q_length", "q_offset", "mask_function"} <= inspect.signature(sdpa_mask).parameters.keys():
        raise Unsupported(f"register: transformers is {transformers.__version__}, expected 5.24 or one like it")
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)
    return name
