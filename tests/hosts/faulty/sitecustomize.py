"""Makes a node's programs fail: Python reads this at its start, wherever this folder is on the path.

The file that the variable FAULTS names says what happens to updates, by round: ``{"2": "die", "4": "slow"}``, and to
letters of other kinds: ``{"describe": "claim"}``. With ``{"flower 3": "garbled"}`` the node sends what Flower cannot
read in round 3. The file is read again for every letter, so a test can change it. FAULT_VERSION is
another version of fedkin; FAULT_SERVER is the round in which the run's program on the server fails.
"""

import json
import os
import sys
import time
from pathlib import Path


def install(path: Path) -> None:
    from fedkin_hosts import client as sites

    if "FAULT_VERSION" in os.environ:
        from fedkin_hosts import allowed_code as versions

        versions.__version__ = os.environ["FAULT_VERSION"]
    answer = sites.ClientService.answer

    def fails(self, of):
        head = of.head
        told = json.loads(path.read_text()) if path.exists() else {}
        what = told.get(str(head.get("kind")))
        if head.get("kind") == "update":
            what = told.get(str(head.get("round")), what)
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

    sites.ClientService.answer = fails


def _raise(*args):
    raise RuntimeError("patient 4711")


def spoilt(made, what):
    """The answer with something wrong in its first tensor of floating-point numbers."""
    import torch

    from fedkin_hosts.heads import WireMessage
    from fedkin_hosts.tensors import bundle, wire_message

    if what == "long side":
        text = json.dumps({"model": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}}).encode()
        return WireMessage({**made.head, "tensors": ["model"]}, len(text).to_bytes(8, "little") + text)
    if what == "unknown entry":
        return WireMessage({**made.head, "more": {"a": [None]}}, made.body)
    if what not in ("claim", "nan", "inf", "large", "shape", "name", "more", "empty", "double", "many bytes"):
        return made
    b = bundle(made)
    if what == "many bytes":
        b["more"] = torch.zeros(3 << 20)
    if what == "claim":
        b["size"] = torch.tensor(10_000_000)
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
    again = wire_message(head, b)
    return WireMessage(again.head, again.body)


def install_flower(path: Path) -> None:
    """In the node's process, which makes Flower's messages."""
    from flwr.app import ConfigRecord
    from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body

    from fedkin_hosts import fleet

    real, whole = fleet.to_records, ConfigRecord.deflate

    def to_records(letter):
        told = json.loads(path.read_text()) if path.exists() else {}
        bad = f"flower {letter.head.get('seq')}" in told
        ConfigRecord.deflate = (lambda self: add_header_to_object_body(b"\xff\xff\xff", self)) if bad else whole
        return real(letter)

    fleet.to_records = to_records


def install_server(round: int) -> None:
    """In the run's program on the server."""
    from fedkin_hosts.transport import Fleet

    real = Fleet.exchange

    def exchange(self, messages, enough=None):
        if any(m.round == round for m in messages.values()):
            raise ZeroDivisionError("nobody thought of this")
        return real(self, messages, enough)

    Fleet.exchange = exchange


if "node" in sys.orig_argv and "FAULTS" in os.environ and "fedkin" in sys.orig_argv:
    install_flower(Path(os.environ["FAULTS"]))
if any("flwr-serverapp" in word for word in sys.orig_argv) and "FAULT_SERVER" in os.environ:
    install_server(int(os.environ["FAULT_SERVER"]))
if "fedkin_hosts.node" in sys.orig_argv and "FAULTS" in os.environ:
    install(Path(os.environ["FAULTS"]))
