"""Orders on their way to workers: what is written is what is read."""

from __future__ import annotations

import select
from typing import get_args

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.core import Bundle
from fedkin.engines.orders import TOKEN_BYTES, OrderHeading, OrderToken, OrderWords
from fedkin.engines.shared import AnswerColumn, Slab
from fedkin.engines.tasks import Step

INT, LONG = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
STEPS: tuple[Step, ...] = get_args(Step)
TOKENS = st.builds(OrderToken, INT, INT, st.sampled_from(STEPS), INT, LONG, INT, st.integers(-1, 2**31 - 1), LONG, INT)


@given(TOKENS)
def test_an_entry_of_the_queue_is_read_as_written(token: OrderToken) -> None:
    """Every step, any numbers: of one size, which a reader of the queue relies on, and some fit into one write."""
    assert OrderToken.of(token.packed()) == token
    assert len(token.packed()) == TOKEN_BYTES
    assert 2 * TOKEN_BYTES <= select.PIPE_BUF


def test_a_heading_and_words_are_read_as_written() -> None:
    """Entries of tensors in a slab, empty tensors, which are in none, and places; types and shapes as they were."""
    slab = Slab(4096)
    bundle = Bundle(model=torch.ones(3, 2), none=torch.zeros(0, 4, dtype=torch.int64), size=torch.tensor(3))
    entries, _ = slab.write(bundle, 0, 4096)
    columns = [AnswerColumn("model", "float32", (3, 2), 640, 24), AnswerColumn("size", "int64", (), 1024, 8)]
    heading = OrderHeading(entries, columns)
    assert OrderHeading.of(heading.words()) == heading
    assert [column.at(2).offset for column in columns] == [640 + 48, 1024 + 16]
    for received in (None, entries):
        words = OrderWords(received, entries[:1])
        assert OrderWords.of(words.words()) == words
    found = slab.read(OrderHeading.of(heading.words()).received)
    assert list(found) == list(bundle)
    assert all(torch.equal(found[n], bundle[n]) and found[n].dtype == bundle[n].dtype for n in bundle)
