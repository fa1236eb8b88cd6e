"""What hides single samples and single updates: differential privacy and secure aggregation.

``budget`` has the privacy options of a run and the epsilon that they spend; ``noise`` makes class counts noisy,
``dp_sgd`` is private training, ``secure_sum`` adds updates up so that only their sum is known.
"""
