"""The command line: ``fedkin inspect | run | compare | ...``, and ``keys | link | status`` for real hosts."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fedkin.version import __version__

OK, FAILED, BAD_INPUT, DIVERGED, INTERRUPTED = 0, 1, 2, 3, 130
_HELP_FLAGS = ("-h", "--help")
_LIMIT = "--max-data-gb"
# commands whose flags depend on a method, or which have none; all others print their own help
_NO_HELP = ("check", "demo", "list", "run", "sweep")

_HELP = f"""fedkin {__version__}: federated learning where clients' data differ

  fedkin demo                    nine methods on real data in about a minute
  fedkin inspect PATH [flags]    how data are understood, and problems with them, before training
  fedkin run METHOD [flags]      train a federation by one method
  fedkin run FILE.toml [flags]   the same from a config file; flags override it
  fedkin compare M1 M2 ... [flags] | FILE.toml
                                 several methods and seeds side by side; local, local-full, fedavg always among them
  fedkin sweep METHOD|FILE.toml --grid training.lr=0.01,0.1 [flags]
                                 many settings of a method; the best on validation data is chosen
  fedkin resume FOLDER           continue an interrupted run, comparison or sweep
  fedkin check METHOD [flags]    check that a user-defined method (./file.py:MyMethod) keeps the contract
  fedkin report FOLDER [--figures FOLDER]
                                 write the page of a run or comparison again; figures as SVG, tables as CSV
  fedkin runs [FOLDER]           runs with method, data, rounds, accuracy and state
  fedkin list [methods|partitions|models|data]
  fedkin new method NAME         templates of a method: its file, a test and a page

  fedkin export RUN --client 7   export a client's model: weights, card, loader
  fedkin predict EXPORT FILE     labels and probabilities for rows, images or arrays
  fedkin join RUN --data PATH    accuracy of a client that joins after the end of training

  fedkin keys authority|server|node FOLDER
                                 certificates and keys for real hosts
  fedkin link [FOLDER]           the server that nodes connect to, and their keys
  fedkin node --data PATH --client-id NAME [flags]
                                 a client on its own host; its data stay there
  fedkin submit FILE.toml        submit a run to the link: the same file as for fedkin run
  fedkin status [FOLDER]         runs and nodes of a link

  METHOD is a name of fedkin list methods, one as papers write it (DA-PFL), or a user-defined class:
  ./file.py:MyMethod or package.module:MyMethod.
  --max-data-gb N with any command: data files may take N GB of memory, 4 by default; larger ones are refused unread.
  fedkin run METHOD --help shows the flags, those of the method among them.
  Exit codes: 0 done, 1 failed on the way, 2 bad input, 3 done, but training diverged, 130 interrupted (Ctrl-C)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with _limited(args) as rest:
            code = _command(rest)
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


@contextmanager
def _limited(args: list[str]) -> Iterator[list[str]]:
    """Yield the arguments of a command without ``--max-data-gb``, which every command accepts: it is about this machine
    and not about a run, and also applies to child processes."""
    rest, given = list[str](), None
    words = iter(args)
    for word in words:
        name, equals, value = word.partition("=")
        if name != _LIMIT:
            rest.append(word)
            continue
        given = value if equals else next(words, None)
        if given is None:
            from fedkin.core.errors import ConfigError  # imported here, so that help does not wait for torch

            raise ConfigError(f"{_LIMIT} needs a number of GB, such as {_LIMIT} 16")
    if given is None:
        yield rest
        return
    from fedkin.data.limits import gigabytes, limited

    with limited(gigabytes(given, _LIMIT)):
        yield rest


def _command(args: list[str]) -> int:
    first, second = [*args, "", ""][:2]
    # `fedkin run --help` is answered here; `fedkin run METHOD --help` by the flags of that method
    if first in ("", "help", *_HELP_FLAGS) or (second in _HELP_FLAGS and first in _NO_HELP):
        print(_HELP)  # noqa: T201 - the command's own output
        return OK
    if first == "--version":
        print(__version__)  # noqa: T201
        return OK
    return _commands(first)(args[1:])


def _commands(name: str) -> Callable[[list[str]], int]:
    # imported here, so that help does not wait for torch; nothing has started yet, and packages may fail on an
    # exception during their import, so Ctrl-C ends the process at once
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in (n for n, handler in before.items() if callable(handler)):  # one that is ignored stays ignored
        signal.signal(number, _leave)
    try:
        from fedkin.cli import check, commands, export, hosts, inspect, join, new, nodes, report, runs, sweep
    finally:
        for number in (n for n, handler in before.items() if callable(handler)):
            signal.signal(number, before[number])

    known: dict[str, Callable[[list[str]], int]] = {
        "run": commands.run_command,
        "compare": commands.compare_command,
        "sweep": sweep.sweep_command,
        "resume": commands.resume_command,
        "check": check.check_command,
        "list": commands.list_command,
        "inspect": inspect.inspect_command,
        "demo": commands.demo_command,
        "report": report.report_command,
        "runs": runs.runs_command,
        "new": new.new_command,
        "export": export.export_command,
        "predict": export.predict_command,
        "join": join.join_command,
        "keys": hosts.keys_command,
        "link": hosts.link_command,
        "status": hosts.status_command,
        "node": nodes.node_command,
        "submit": nodes.submit_command,
    }
    if name not in known:
        from fedkin.core.errors import ConfigError, nearest

        raise ConfigError(f"unknown command {name!r}{nearest(name, known)}")
    return known[name]


def _say(error: Exception, code: int) -> int:
    print(f"fedkin: {error}", file=sys.stderr)  # noqa: T201
    return code


def _leave(signum: int, frame: object) -> None:
    print("stopped", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(INTERRUPTED)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt
