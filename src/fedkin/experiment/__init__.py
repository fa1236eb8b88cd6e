"""Runs: their settings, how they are prepared and executed, their folders, and many of them at once.

``settings`` declares every setting; ``prepare`` makes one `Experiment` of them, the object that all else starts from;
``execute`` is the round loop's surroundings over any transport, ``run`` the simulator's. ``run_folder`` and ``records``
are what a run writes, ``fingerprints`` what it is recognised by, ``result`` what it gives, ``extend`` gives it more
rounds, ``progress`` shows how far it is. ``compare``, whose result is ``comparison``, and ``sweep`` make many runs
(``search_space`` says which settings, ``planned`` how many), ``trackers`` report them elsewhere. ``tuning`` chooses the
settings of a comparison's methods by sweeps of equal size.
"""
