"""A cache of keys and values, as FlashAttention's functions have it."""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from ..torch import append
from ._calls import given
from ._lse import sequences_of
from ._report import refuse
from ._rotary import apply_rotary_emb


class Caches:
    """A cache of keys and values with its lengths, before and after new rows."""

    def __init__(
        self, q: Any, k_cache: Any, v_cache: Any, seqlens: Any, batch_idx: Any, leftpad: Any, page_table: Any
    ) -> None:
        if isinstance(seqlens, int):
            seqlens = torch.full((q.shape[0],), seqlens, dtype=torch.int32, device=q.device)
        if page_table is not None and batch_idx is not None:
            page_table, batch_idx = page_table.index_select(0, batch_idx), None
        self.k, self.v, self.before, self.seqlens = k_cache, v_cache, seqlens, seqlens
        self.batch_idx, self.leftpad, self.page_table = batch_idx, leftpad, page_table

    def append(
        self,
        k: Any,
        v: Any,
        q: Any,
        rotary: tuple[Any, Any],
        interleaved: bool,
        moves: bool,
        rotary_seqlens: Any = None,
        cu_seqlens: tuple[Any, Any] = (None, None),
    ) -> Any:
        """q, rotated where that is asked for, after k and v are written.

        moves: rows of q stand at positions of their own. rotary_seqlens: the position of the first new row; None = the
        length before. cu_seqlens: of packed q and of packed new keys.
        """
        if k is None:
            if rotary[0] is not None:
                refuse("rotary_cos", "given without k", "both, or neither")
            return q
        if self.before is None:
            refuse("cache_seqlens", "None beside k", "the lengths at which k and v are written")
        cu_seqlens_q, cu_seqlens_new = cu_seqlens
        new = k.shape[1] if cu_seqlens_new is None else cu_seqlens_new[1:] - cu_seqlens_new[:-1]
        self.seqlens = self.before + new
        named = given(page_table=self.page_table, cache_batch_idx=self.batch_idx, leftpad_kv=self.leftpad)
        named.update(given(cu_seqlens_new=cu_seqlens_new))
        if rotary[0] is not None:
            first = self.before if rotary_seqlens is None else rotary_seqlens
            named.update(rotary=rotary, rotary_interleaved=interleaved)
            offsets = None if rotary_seqlens is None else rotary_seqlens - self.before
            if self.leftpad is not None:
                offsets = self.leftpad if offsets is None else offsets + self.leftpad
            named.update(given(rotary_offsets=offsets))
            is_packed = cu_seqlens_q is not None or cu_seqlens_new is not None
            if not is_packed and q.shape[1] == k.shape[1] and (moves or q.shape[1] == 1):
                named["q"] = q
            elif cu_seqlens_q is not None:
                q = self._turned_packed(q, rotary, interleaved, moves, first, cu_seqlens_q)
            else:
                rows = q if moves else q.flatten(1, 2)[:, None]  # all of them at one position
                q = apply_rotary_emb(rows, *rotary, interleaved=interleaved, seqlen_offsets=first).reshape(q.shape)
        turned = append(k, v, self.k, self.v, self.seqlens, **named)
        return q if turned is None else turned

    @staticmethod
    def _turned_packed(q: Any, rotary: tuple[Any, Any], interleaved: bool, moves: bool, first: Any, cu: Any) -> Any:
        if moves:
            return apply_rotary_emb(q, *rotary, interleaved=interleaved, seqlen_offsets=first, cu_seqlens=cu)
        sequence = sequences_of(torch.arange(q.shape[0], device=q.device), cu)
        return apply_rotary_emb(q[:, None], *rotary, interleaved=interleaved, seqlen_offsets=first[sequence])[:, 0]

    def options(self) -> dict[str, Any]:
        """Of the attention that follows."""
        return given(
            seqlens_kv=self.seqlens,
            page_table=self.page_table,
            cache_batch_idx=self.batch_idx,
            leftpad_kv=self.leftpad,
        )
