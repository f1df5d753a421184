"""A mutation: one defect in a kernel, and the test of the emulator that finds it."""

from typing import NamedTuple

FORWARD, BACKWARD = "emulated_quick_test", "emulated_quick_backward_test"
SHORT_ROWS = "emulated_short_rows_test"
F8 = "emulated_forward_f8_test"
BACKWARD_SM90 = "emulated_backward_sm90_test"
DECODE = "emulated_quick_decode_test"
OTHERS = "emulated_quick_others_test"
LINEAR_BLAS = "emulated_linear_blas_test"
LINEAR_SM80 = "emulated_linear_sm80_test"  # linear_gemv too
LINEAR_SM90 = "emulated_linear_sm90_test"


class Mutation(NamedTuple):
    """A break. found: stands in the file once, whatever the white space between its words. test: of target, that fails."""

    name: str
    file: str
    found: str
    instead: str
    test: str
    target: str = FORWARD
