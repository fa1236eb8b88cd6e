"""Random kills of the programs of host runs, by a seed; every run must end as the simulator does, bit for bit.

    python tests/hosts/kills.py FOLDER [--kills 30] [--rounds 12] [--seed 0]

At random moments one of these is killed as by a power cut or by a machine without memory: a node with all that it
started, its worker, the run's program on the server, the link with all that it started. What does not
come back by itself is started again, and the run submitted again. A line of JSON is written for each kill, and for each
run whether the server's state equals the simulator's with the same participation.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedkin.experiment.settings import Settings
from hostprograms import Fleet, rounds, say, server_equals
from hosttoys import settings, traced
from programs import descendants

METHODS = ("fedrep", "da-pfl", "ifca-cam", "pfedcs", "feddyn")
TARGETS = ("node", "worker", "serverapp", "link")
_WORDS = {"worker": "fedkin_hosts.node", "serverapp": "flwr-serverapp"}
_PATIENCE = 3600.0  # seconds for one round: a node's key is refused up to a minute after its host died
_ROUND = 6.0  # seconds of a round about: kills are spread over it


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=12, help="of each run")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    return 0 if kill(args.folder, args.kills, args.rounds, args.seed) else 1


def kill(folder: Path, kills: int, length: int = 12, seed: int = 0) -> bool:
    """Plays runs until so many kills were done; whether every one of them ended as the simulator does."""
    folder.mkdir(parents=True, exist_ok=True)
    draw, fleet, done, equal = random.Random(seed), Fleet(folder.resolve()), 0, True
    hosts = {"min_clients": 3, "min_connected": 1, "reply_timeout": 60.0, "wait_timeout": 600.0}
    try:
        fleet.up(0, 1, 2)
        for number in range(kills):
            if done >= kills:
                break
            method = METHODS[number % len(METHODS)]
            s = settings(method, run={"rounds": length, "eval_every": length}, hosts=hosts)
            run = fleet.submit(s, f"run-{number}")
            while done < kills and len(rounds(run)) < length - 2:
                at = len(rounds(run)) + 1  # the run goes on between two kills
                fleet.until(lambda at=at, run=run: len(rounds(run)) >= at, _PATIENCE)
                time.sleep(draw.uniform(0, _ROUND))
                if len(rounds(run)) >= length - 2:
                    break
                what, client = draw.choice(TARGETS), draw.randrange(3)
                strike(fleet, what, client, s, run.name)
                done += 1
                say(kill=done, what=what, client=client, round=len(rounds(run)))
            lines = fleet.finish(run, _PATIENCE)
            same = server_equals(run, traced(s, lines))
            missed = sum(3 - len(line.answered) for line in lines)
            say(run=run.name, method=method, rounds=len(lines), missed=missed, equal=same)
            equal &= same and len(lines) == length
    finally:
        fleet.down()
    return equal


def strike(fleet: Fleet, what: str, client: int, s: Settings, name: str) -> None:
    """Kills something, and starts again what does not come back by itself."""
    if what == "node":
        fleet.kill(client)
        fleet.start(client)
        return
    if what == "link":
        fleet.kill_server()
        fleet.up()
        fleet.submit(s, name)
        return
    assert fleet.link is not None
    root = fleet.link.process.pid if what == "serverapp" else fleet.nodes[client].pid
    hit = [pid for pid in descendants(root) if _WORDS[what] in command(pid)]
    for pid in hit:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # it ended by itself just now
            continue
    if what == "serverapp":
        fleet.submit(s, name)


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
