"""Makes a node's worker fail: Python reads this at its start, wherever this folder is on the path.

The file that the variable FAULTS names says what happens to updates, by round: ``{"2": "die", "4": "slow"}``. It is
read again for every letter, so a test can change it. FAULT_VERSION is another version of fedkin.
"""

import json
import os
import sys
import time
from pathlib import Path


def install(path: Path) -> None:
    from fedkin.hosts import site as sites

    if "FAULT_VERSION" in os.environ:
        from fedkin.hosts import versions

        versions.__version__ = os.environ["FAULT_VERSION"]
    answer = sites.Site.answer

    def fails(self, of):
        head = of.head
        told = json.loads(path.read_text()) if path.exists() else {}
        what = told.get(str(head.get("round"))) if head.get("kind") == "update" else None
        if what is None:
            return answer(self, of)
        if what == "hang":
            time.sleep(1e6)
        if what == "slow":
            time.sleep(3)
        if what == "die":
            os._exit(9)
        if what == "raise":
            self._job_of = _raise
        if what == "raise after work":
            self.store.save = _raise
        made = answer(self, of)
        vars(self).pop("_job_of", None)
        vars(self.store).pop("save", None)
        if what == "die after work":
            os._exit(9)
        return spoilt(made, what)

    sites.Site.answer = fails


def _raise(*args):
    raise RuntimeError("patient 4711")


def spoilt(made, what):
    """The answer with something wrong in its first tensor of floating-point numbers."""
    import torch

    from fedkin.hosts.tensors import bundle, letter
    from fedkin.hosts.wire import Letter

    if what not in ("nan", "inf", "large", "shape", "name", "more", "empty", "double", "many bytes"):
        return made
    b = bundle(made)
    if what == "many bytes":
        b["more"] = torch.zeros(3 << 20)
    name = next((n for n, t in b.items() if t.is_floating_point()), next(iter(b)))
    if what in ("nan", "inf", "large"):
        b[name] = b[name].clone()
        b[name].view(-1)[0] = {"nan": float("nan"), "inf": float("inf"), "large": 1e30}[what]
    if what == "shape":
        b[name] = b[name].view(-1)[1:].clone()
    if what == "double":
        b[name] = b[name].double()
    if what == "more":
        b["more"] = torch.zeros(2)
    if what == "name":
        b["other"] = b.pop(name)
    if what == "empty":
        b.clear()
    head = {n: v for n, v in made.head.items() if n != "tensors"}
    again = letter(head, b)
    return Letter(again.head, again.body)


if "fedkin.hosts.worker" in sys.orig_argv and "FAULTS" in os.environ:
    install(Path(os.environ["FAULTS"]))
