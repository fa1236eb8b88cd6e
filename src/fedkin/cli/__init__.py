"""The command line: ``fedkin inspect | run | compare | ...`` locally, ``keys | link | status`` for real hosts."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from fedkin.display import OneLine, printable
from fedkin.version import __version__

OK, FAILED, BAD_INPUT, DIVERGED, INTERRUPTED = 0, 1, 2, 3, 130
_HOSTS = ("keys", "link", "node", "submit", "status")
_COMMANDS = {
    "run": "flags.run_flags commands.run",
    "compare": "flags.compare_flags commands.compare",
    "sweep": "flags.sweep_flags sweep.run",
    "resume": "flags.resume_flags commands.resume",
    "check": "check.check_command",
    "list": "listing.list_command",
    "inspect": "inspect.inspect_command",
    "demo": "commands.demo_command",
    "report": "report.report_command",
    "runs": "runs.runs_command",
    "export": "export.export_command",
    "predict": "export.predict_command",
    "join": "join.join_command",
}
"""Command -> the function that runs it, imported when it is needed; of commands that train, the one that reads flags
comes first, so that a typo is answered before torch is imported. `_HOSTS` are those of the package fedkin-hosts."""

_HELP = f"""fedkin {__version__}: federated learning where clients' data differ
Start    demo                   ten methods on real data in about a minute
         list [KIND]            methods, papers, partitions, models, data
         inspect PATH           what was read of data, and what looks wrong
Train    run METHOD|FILE.toml   train a federation by one method
         compare M1 M2 ...      several methods and seeds, with references
         sweep METHOD --grid .. many settings; validation data choose the best
         resume FOLDER          go on with an interrupted run, comparison, sweep
Results  runs [FOLDER]          list runs with accuracy, state; --html: a page
         report FOLDER          write the page again; figures, tables as files
         export RUN --client 7  a client's model: ONNX, weights, card
         predict EXPORT FILE    labels of rows, images or arrays by that model
         join RUN --data PATH   how a new client would fare after training
Methods  check METHOD           test a method against the contract
Hosts    keys KIND FOLDER       certificates and keys: authority, server, node
         link [FOLDER]          the server that nodes connect to
         node --data PATH ..    a client on its own host; its data stay there
         submit FILE.toml       start a run on the link's nodes
         status [FOLDER]        runs and nodes of a link
METHOD: NAME or NAME@FIELD=VALUE,..., ./file.py:Class or package.module:Class.
run METHOD --help explains all flags.
Exit codes: 0 done, 1 failed, 2 bad input, 3 training diverged, 130 interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGTERM, _interrupt)
    _require_streams()
    try:
        code = _command(args)
        sys.stdout.flush()  # now, where a closed reader can be distinguished from other errors
        return code
    except BrokenPipeError:  # the reader of the output has closed it, as in `fedkin list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as e:  # a full disk, a folder without write permission
        return _say(e, FAILED)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    except Exception as e:
        from fedkin.core.errors import DiskFullError, EngineError, FedkinError, MethodError

        if not isinstance(e, FedkinError):
            raise
        return _say(e, FAILED if isinstance(e, (MethodError, EngineError, DiskFullError)) else BAD_INPUT)


def _require_streams() -> None:
    """Let output go nowhere if it is closed, and write ? for signs such as ± that its encoding lacks; warnings that are
    logged are lines on standard error."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(OneLine())
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def _command(args: list[str]) -> int:
    first = args[0] if args else ""
    if first in ("", "help", "-h", "--help"):
        print(_HELP)  # noqa: T201 - the command's own output
        return OK
    if first == "--version":
        print(__version__)  # noqa: T201
        return OK
    if (refused := _refusal(args)) is not None:
        return _say(refused, BAD_INPUT)
    command, rest = _commands(first), args[1:]
    return command(rest)


def _commands(name: str) -> Callable[[list[str]], int]:
    # imported here, so that help does not wait for torch; nothing has started yet, and packages may fail on an
    # exception during their import, so Ctrl-C ends the process at once
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in (n for n, handler in before.items() if callable(handler)):  # one that is ignored stays ignored
        signal.signal(number, _leave)
    try:
        if name in _HOSTS:
            (result,) = entry_points(group="fedkin.commands", name=name)
            command: Callable[[list[str]], int] = result.load()
        else:
            first, *then = _COMMANDS[name].split()
            command = _found(first) if not then else partial(_after_flags, _found(first), then[0])
    finally:
        for number in (n for n, handler in before.items() if callable(handler)):
            signal.signal(number, before[number])
    return command


def _after_flags(read: Callable[[list[str]], tuple[Any, ...]], place: str, args: list[str]) -> int:
    asked = read(args)  # before what follows, which imports torch
    code: int = _found(place)(*asked)
    return code


def _found(place: str) -> Callable[..., Any]:
    module, function = place.split(".")
    result: Callable[..., Any] = getattr(import_module(f"fedkin.cli.{module}"), function)
    return result


def _refusal(args: list[str]) -> str | None:
    """Return the answer to an unknown command, which does not wait for torch; None if there is none."""
    for word in (*args, os.getcwd()):
        if (shown := os.fsencode(word).decode(errors="backslashreplace")) != word:
            return f"{shown} is not UTF-8, and paths stand in files that are; rename the file or folder"
    if args[0] not in (known := (*_COMMANDS, *_HOSTS)):
        near = get_close_matches(args[0], known, n=1, cutoff=0.5)
        return f"unknown command {args[0]!r}; " + (f"did you mean {near[0]!r}?" if near else "fedkin --help shows all")
    if args[0] in _HOSTS and sys.platform == "win32":
        return f"fedkin {args[0]} needs Linux or macOS; on Windows use it in WSL (Windows Subsystem for Linux)"
    if args[0] in _HOSTS and not entry_points(group="fedkin.commands", name=args[0]):
        return f"fedkin {args[0]} is for real hosts; install them: pip install fedkin-hosts"
    return None


def _say(error: object, code: int) -> int:
    print(f"fedkin: {printable(str(error))}", file=sys.stderr)  # noqa: T201
    return code


def _leave(signum: int, frame: object) -> None:
    print("stopped", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(INTERRUPTED)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt
