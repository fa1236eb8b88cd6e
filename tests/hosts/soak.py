"""F19: a long run over real programs with a fault every few rounds, by a seed; it must end as the simulator does.

    python tests/hosts/soak.py FOLDER [--rounds 200] [--every 5] [--seed 0] [--method fedrep]

Every few rounds one of these happens: an update fails in the worker (raises, dies, hangs, holds a NaN), a node's power
fails, the server's power fails. A line of JSON is written for each fault, and at the end whether the server's state
equals the simulator's with the same participation, and how memory and the database's size went.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedkin.hosts.programs import descendants
from hostprograms import Fleet, rounds, server_equals
from hosttoys import settings, traced

WORKERS = ("raise", "raise after work", "die", "die after work", "hang", "nan", "shape")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", default="fedrep")
    args = parser.parse_args()
    args.folder.mkdir(parents=True)
    draw, fleet = random.Random(args.seed), Fleet(args.folder.resolve())
    hosts = {"clients": 3, "least": 1, "deadline": 15.0, "patience": 180.0}
    s = settings(args.method, run={"rounds": args.rounds, "eval_every": args.rounds}, hosts=hosts)
    try:
        fleet.up(0, 1, 2)
        folder = fleet.submit(s, "soak")
        for at in range(args.every, args.rounds - args.every, args.every):
            what = draw.choice(["worker"] * 3 + ["node", "server"])
            client = draw.randrange(3)
            if what == "worker":
                how = draw.choice(WORKERS)
                fleet.fail(client, {at + 1: how})
                what = f"worker: {how}"
            fleet.until(lambda at=at: len(rounds(folder)) >= at, 600)
            if what == "node":
                fleet.kill(client)
                fleet.start(client)
            if what == "server":
                fleet.kill_server()
                fleet.up()
                fleet.submit(s, "soak")
            say(round=at, fault=what, client=client, **sizes(fleet))
        lines = fleet.finish(folder, 3600)
        theirs = traced(s, lines)
        equal = server_equals(folder, theirs)
        missed = sum(3 - len(line["answered"]) for line in lines)
        say(rounds=len(lines), missed=missed, equal=equal, **sizes(fleet))
        return 0 if equal else 1
    finally:
        fleet.down()


def sizes(fleet: Fleet) -> dict[str, float]:
    """MB of memory of the SuperLink and all that it started, and of each node; MB of the link's database."""
    assert fleet.link is not None
    superlink = fleet.link.superlink.pid
    found = {"server_mb": memory([superlink, *descendants(superlink)])}
    for i, node in fleet.nodes.items():
        found[f"node{i}_mb"] = memory([node.pid, *descendants(node.pid)])
    found["database_mb"] = sum(path.stat().st_size for path in fleet.place.glob("link.db*")) / 1e6
    return {name: round(value, 1) for name, value in found.items()}


def memory(processes: list[int]) -> float:
    total = 0
    for pid in processes:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
    return total * 4096 / 1e6


def say(**line: object) -> None:
    sys.stdout.write(json.dumps({"time": time.strftime("%H:%M:%S"), **line}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
