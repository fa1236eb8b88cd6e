"""The record of a run: what its folder holds, and the figures that follow from it.

``lines`` declares every line once; ``files`` writes and reads them; ``figures`` and ``divergence`` are pure functions
on lines; ``result`` is a run as everything else reads it, ``frames`` as pandas DataFrames.
"""
