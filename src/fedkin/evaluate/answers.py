"""Single test samples of a client: correct predictions, and their changes from one method to another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedkin.record.lines import ClientLine


@dataclass(frozen=True, eq=False)
class Changed:
    """Changes for the test samples of one client from the reference to a method.

    Attributes:
        net: by sample, int8 ``[n]``: 1 where only the method is correct, -1 where only the reference is, else 0.
        digest: digest of the samples.
        alike: both gave the same logits for every sample; False where they differ or are not known.
    """

    net: NDArray[np.int8]
    digest: str
    alike: bool = False


def changed(reference: ClientLine, method: ClientLine) -> Changed | None:
    """Return the differences sample by sample; None where the two were not tested on the same samples."""
    if (reference.test_part, reference.n_test) != (method.test_part, method.n_test):
        return None
    bits = (np.frombuffer(line.right, np.uint8) for line in (reference, method))
    a, b = (np.unpackbits(one, count=method.n_test).astype(np.int8) for one in bits)
    return Changed(b - a, method.test_part, alike="" != reference.logits == method.logits)
