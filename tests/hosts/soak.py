"""F19: a long run over real programs with a fault every few rounds, by a seed; it must end as the simulator does.

    python tests/hosts/soak.py FOLDER [--rounds 200] [--every 5] [--seed 0] [--method fedrep]

Every few rounds one of these happens: an update fails in the worker (raises, dies, hangs, holds a NaN), a node's power
fails, the server's power fails. A line of JSON is written for each fault, and at the end whether the server's state
equals the simulator's with the same participation, whether memory stayed flat, and how the database's size went.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from hostprograms import Fleet, rounds, say, server_equals
from hosttoys import settings, traced
from programs import descendants

WORKERS = ("raise", "raise after work", "die", "die after work", "hang", "nan", "shape")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", default="fedrep")
    args = parser.parse_args()
    return 0 if soak(args.folder, args.rounds, args.every, args.seed, args.method) else 1


def soak(place: Path, length: int, every: int, seed: int = 0, method: str = "fedrep") -> bool:
    """Plays one run with a fault every few rounds; whether it ended as the simulator does and memory stayed flat."""
    place.mkdir(parents=True, exist_ok=True)
    draw, fleet, seen = random.Random(seed), Fleet(place.resolve()), list[dict[str, float]]()
    hosts = {"min_clients": 3, "min_connected": 1, "reply_timeout": 60.0, "wait_timeout": 600.0}
    s = settings(method, run={"rounds": length, "eval_every": length}, hosts=hosts)
    try:
        fleet.up(0, 1, 2)
        folder = fleet.submit(s, "soak")
        for at in range(every, length - every + 1, every):
            what = draw.choice(["worker"] * 3 + ["node", "server"])
            client = draw.randrange(3)
            if what == "worker":
                how = draw.choice(WORKERS)
                fleet.fail(client, {at + 1: how})
                what = f"worker: {how}"
            fleet.until(lambda at=at: len(rounds(folder)) >= at, 3600)
            seen.append(sizes(fleet))  # before the fault: what it starts anew has its memory still to take
            if what == "node":
                fleet.kill(client)
                fleet.start(client)
            if what == "server":
                fleet.kill_server()
                fleet.up()
                fleet.submit(s, "soak")
            say(round=at, fault=what, client=client, **seen[-1])
        lines = fleet.finish(folder, 3600)
        equal = server_equals(folder, traced(s, lines)) and len(lines) == length
        missed, steady = sum(3 - len(line.answered) for line in lines), flat(seen)
        say(rounds=len(lines), faults=len(seen), missed=missed, equal=equal, flat=steady, **sizes(fleet))
        return equal and steady
    finally:
        fleet.down()


def flat(seen: list[dict[str, float]]) -> bool:
    """Whether no program's memory grew: the medians of the first and the last third differ by 20 % and 30 MB at most.

    A few looks are too few to tell, and pass.
    """
    third = len(seen) // 3
    if third < 3:
        return True
    names = [name for name in seen[0] if name != "database_mb"]
    before, after = (
        {n: statistics.median(one[n] for one in part) for n in names} for part in (seen[:third], seen[-third:])
    )
    return all(after[n] <= 1.2 * before[n] + 30 for n in names)


def sizes(fleet: Fleet) -> dict[str, float]:
    """MB of memory of the SuperLink and all that it started, and of each node; MB of the link's database."""
    assert fleet.link is not None
    superlink = fleet.link.process.pid
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


if __name__ == "__main__":
    sys.exit(main())
