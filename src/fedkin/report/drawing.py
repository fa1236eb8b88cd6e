"""The library that draws charts, in a process of its own: where it gets no memory, it ends its whole process.

It reserves tens of GB of addresses, which ``ulimit -v`` may forbid. The process is started by the first chart, gets a
call per line as JSON and answers each with a line, and ends with its starter.
"""

from __future__ import annotations

import atexit
import base64
import json
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache

_TURN = threading.Lock()  # a call and its answer belong together


def drawn(function: str, **options: object) -> bytes:
    """Return the result of a function of vl-convert; a text is UTF-8.

    Raises:
        EngineError: the library refused the chart or ended its process.
    """
    from fedkin.core.errors import EngineError  # here, since the process that draws needs no torch

    child = _child()
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        with _TURN:
            child.stdin.write(json.dumps([function, options]).encode() + b"\n")
            child.stdin.flush()
            made: list[str] = json.loads(child.stdout.readline())
    except BaseException as e:  # also of an interrupt, after which its answer would be taken for the next one
        _child.cache_clear()
        _end(child)
        if not isinstance(e, (OSError, ValueError)):
            raise
        raise EngineError(
            f"no chart was drawn: the library that draws ended with code {child.returncode}. It needs room for tens "
            "of GB of addresses; raise that limit (ulimit -v) and write it again, such as with fedkin report FOLDER"
        ) from e
    if len(made) > 1:
        raise EngineError(f"a chart was not drawn: {made[1]}")
    return base64.b64decode(made[0])


@cache
def _child() -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-P", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    atexit.register(_end, child)
    return child


def _end(child: subprocess.Popen[bytes]) -> None:
    with suppress(OSError), child:  # closes its pipes
        child.kill()


def main() -> None:
    """Answer calls from standard input."""
    import vl_convert

    for line in sys.stdin:
        function, options = json.loads(line)
        try:
            made = getattr(vl_convert, function)(**options)
            answer = [base64.b64encode(made.encode() if isinstance(made, str) else made).decode()]
        except Exception as e:  # whatever a chart leads to
            answer = ["", " ".join(str(e).split())[:300]]
        print(json.dumps(answer), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
