"""Counts the DNS look-ups of a link, a node and one run: a program for a network of its own, where nothing is outside.

    unshare --net --mount python lookups.py FOLDER [without-switches]

Prints a line of JSON: how the run ended and the names that were looked up. The recorder stands where this network's
only name server is said to be.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedkin_hosts import keys, machine
from fedkin_hosts.link import LinkSettings
from fedkin_hosts.submitted import submit
from hosttoys import settings
from programs import Program, Running, wait_until

RUN = {"min_clients": 1, "reply_timeout": 300.0}


def loopback_up() -> None:
    """A new network has a loopback interface, but it is off."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh", b"lo", 0x1 | 0x40)  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(any_socket, 0x8914, request)  # SIOCSIFFLAGS


def record(seen: Counter[str]) -> None:
    """A name server that knows nothing and remembers every name that it was asked for."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))

    def serve() -> None:
        while True:
            question, asker = server.recvfrom(2048)
            labels, at = [], 12
            while question[at]:
                labels.append(question[at + 1 : at + 1 + question[at]].decode("ascii", "replace"))
                at += 1 + question[at]
            seen[".".join(labels)] += 1
            server.sendto(question[:2] + b"\x81\x83" + question[4:6] + bytes(6) + question[12:], asker)

    threading.Thread(target=serve, daemon=True).start()


def own_resolver(folder: Path) -> None:
    """Every program of this network asks the recorder."""
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    (folder / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    for name in ("resolv.conf", "hosts"):
        subprocess.run(["mount", "--bind", folder / name, f"/etc/{name}"], check=True)


def finished(up: Running, seconds: float) -> str:
    """The status of the only run when it has ended, or when the time is over."""
    end = time.monotonic() + seconds
    while True:
        status = str(up.control.runs()[0].status)
        if status.startswith("finished") or time.monotonic() > end:
            return status
        time.sleep(0.5)


def run(folder: Path, env: Mapping[str, str]) -> str:
    """A link behind its gate, one node, one run."""
    place = folder / "link"
    keys.make_authority(place / "keys", ["127.0.0.1"])
    keys.make_node_key(folder, "a")
    (place / "nodes").mkdir()
    (place / "nodes" / "a.pub").write_bytes((folder / "a.pub").read_bytes())
    up = Running(LinkSettings(place, host="127.0.0.1", port=0, inner_port=0))
    node = None
    try:
        command = [sys.executable, "-m", "fedkin", "node", "--data", "digits", "--share", "0", "--client-id", "a"]
        command += ["--link", up.address, "--ca", str(place / "keys" / "ca.crt"), "--key", str(folder / "a")]
        node = Program("node", [*command, "--folder", str(folder / "disk")], env, folder / "node.log")
        wait_until(lambda: up.control.nodes()[0].status == "online", node, 300)
        submit(settings("fedavg", run={"rounds": 1}, hosts=RUN), folder / "run", up.control)
        return finished(up, 300)
    finally:
        if node is not None:
            node.stop()
        up.stop()


def main() -> None:
    folder, seen = Path(sys.argv[1]), Counter[str]()
    if "without-switches" in sys.argv:
        machine.SWITCHES = {}
        for name in [name for name in os.environ if name.startswith("FLWR_")]:
            del os.environ[name]
    loopback_up()
    own_resolver(folder)
    record(seen)
    socket.getaddrinfo("127.0.0.1", 1)  # an address is none
    status = run(folder, machine.environment(folder / "flower"))
    time.sleep(1)
    sys.stdout.write(json.dumps({"status": status, "seen": dict(seen)}) + "\n")


if __name__ == "__main__":
    main()
