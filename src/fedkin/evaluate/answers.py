"""Single test samples of a client: correct predictions, and their changes from one method to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.core.errors import DataError


@dataclass(frozen=True)
class Answers:
    """The test samples of one client under one model.

    Attributes:
        right: one bit per sample in test order, the most significant first: 1 where the prediction is correct.
        n: number of test samples.
        digest: digest of the samples; two runs with equal digests tested the client on the same samples.
        logits: digest of the logits for them; equal for two models that predict alike. "" where it is not known.
    """

    right: bytes
    n: int
    digest: str
    logits: str = ""

    def __post_init__(self) -> None:
        if len(self.right) != (self.n + 7) // 8:
            raise DataError(f"{self.n} test samples take {(self.n + 7) // 8} bytes of bits, got {len(self.right)}")


def answers_of(line: Mapping[str, Any]) -> Answers | None:
    """Read a client's line of the last evaluated round (``right``, ``test_digest``, ``logits_digest``, ``n_test``).

    Returns:
        The client's answers; None where the line has none: of an earlier round, or with privacy.

    Raises:
        DataError: the bits are not hexadecimal, or not one for each test sample.
    """
    right, digest, n = line.get("right"), line.get("test_digest"), line.get("n_test")
    if not isinstance(right, str) or not isinstance(digest, str) or not n:
        return None
    try:
        bits = bytes.fromhex(right)
    except ValueError as error:
        raise DataError(f"expected right as hexadecimal digits, got {right[:20]!r}") from error
    logits = str(line.get("logits_digest") or "")
    return Answers(bits, int(n), digest, logits if logits.strip("0") else "")  # zeros: not finite


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


def changed(reference: Answers, method: Answers) -> Changed | None:
    """Return the differences sample by sample; None where the two were not tested on the same samples."""
    if (reference.digest, reference.n) != (method.digest, method.n):
        return None
    a, b = (np.unpackbits(np.frombuffer(x.right, np.uint8), count=x.n).astype(np.int8) for x in (reference, method))
    return Changed(b - a, method.digest, alike="" != reference.logits == method.logits)
