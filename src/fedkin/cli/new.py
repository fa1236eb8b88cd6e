"""``fedkin new method NAME``: templates of a method: its file, a test with hand-computed numbers, its page."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional

import fedkin.core as core
from fedkin.cli import screen
from fedkin.cli.options import options
from fedkin.core import ConfigError
from fedkin.core.errors import typed
from fedkin.methods import METHODS, get_title
from fedkin.storage.files import write_atomic

_METHOD = '''"""{title}: the method in one sentence.

State here what the paper leaves open, and how it is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, to_all


@dataclass(frozen=True)
class {kind}(Method):
    """The method in one sentence: the help of ``fedkin run``."""

    title = "{title}"
    paper = ""  # authors: title, venue and year
    family = "one global model"
    reveals = "its model"
    also_sends = ""  # what clients send of their data besides models that they trained; "" if nothing

    mu: float = 0.0
    """Weight of the proximal term."""

    def init(self, r: Round) -> Bundle:
        return Bundle(model=r.w0)

    def distribute(self, s: Bundle, r: Round) -> Download:
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        start = c.received.model
        w = yield Train(start, center=start, mu=self.mu)  # Eq. 1
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        return Bundle(model=r.mean(up.model))  # Eq. 2
'''

_TEST = '''"""{title} by hand: the server's result for two uploads, computed on paper."""

from __future__ import annotations

import torch

from fedkin.core import Bundle
from fedkin.testing import check_method

{load}


def test_the_contract() -> None:
    """Every rule of `fedkin check`."""
    check_method({kind}())


def test_the_mean_by_hand() -> None:
    """Eq. 2: clients with 1 and 3 samples and models 0 and 4 give 3."""

    class Weighted:
        """The round: means weigh by samples."""

        def mean(self, rows: torch.Tensor) -> torch.Tensor:
            return torch.tensor([1.0, 3.0]) @ rows / 4

    uploads = Bundle(model=torch.tensor([[0.0], [4.0]]))
    made = {kind}(mu=0.5).aggregate(Bundle(model=torch.zeros(1)), Weighted(), uploads)
    assert made.model.tolist() == [3.0]
'''

_PAGE = """# {title}

## Idea

What clients share. What each client keeps or receives. Why that helps where their data differ.

Paper: authors: title, venue and year.

## Equations and code

| step | equation | code |
| --- | --- | --- |
| local training | `min F_k(w) + mu/2 sum (w - w^t)^2` | `w = yield Train(start, center=start, mu=self.mu)` |
| aggregation | `w^{{t+1}} = sum_k n_k w_k / sum_k n_k` | `return Bundle(model=r.mean(up.model))` |

## What leaves a client

Its trained model.

## Settings

| field | default | why |
| --- | --- | --- |
| `mu` | `0.0` | weight of the proximal term; as in the paper and its program |

## Deviations

- Where this differs from the paper or from its program, and why.

## Known problems

- Errors of published programs that the tests check for; cases in which the method fails.

## When to use

Data for which it is made, its cost, and when another method is better.

## Try it

```sh
fedkin run {run} --data digits --partition dirichlet --alpha 0.5 --rounds 30
```
"""


@dataclass(frozen=True)
class NewFlags:
    """Write the file, the test and the page of a method to start from."""

    what: Annotated[Positional[Literal["method"]], tyro.conf.arg(metavar="method")]
    """The kind of template."""
    name: Annotated[Positional[str], tyro.conf.arg(metavar="NAME")]
    """Name of the method on the command line, such as my-fedavg."""
    title: str | None = None
    """Title of the method, such as MyFedAvg; its letters and digits are the name of its class, which is what tables
    show outside a checkout. Default: derived from NAME."""
    folder: Path = Path()
    """Target folder. In a checkout of fedkin the files go next to its methods, tests and pages."""


def new_command(args: list[str]) -> int:
    """Run ``fedkin new method NAME [--title TITLE] [--folder FOLDER]``."""
    flags = options(NewFlags, args, "fedkin new")
    if not re.fullmatch("[a-z][a-z0-9]*(-[a-z0-9]+)*", flags.name):
        raise ConfigError(f"NAME must be lower-case words with - between them, such as my-fedavg, got {flags.name!r}")
    if flags.title is not None and (not flags.title.isprintable() or set(flags.title) & set('"\\')):
        raise ConfigError(f"--title is written into a program: no quotation mark, no backslash; got {flags.title!r}")
    if flags.folder.exists() and not flags.folder.is_dir():
        raise ConfigError(f"--folder names a folder, and {flags.folder} is a file; name another")
    for what, word, other in (("file", _module(flags.name), "NAME"), ("class", _kind(flags), "NAME or --title")):
        if keyword.iskeyword(word):
            raise ConfigError(f"the {what} would be called {word}, a word of Python itself; choose another {other}")
    if hasattr(core, _kind(flags)):
        raise ConfigError(
            f"the class would be called {_kind(flags)}, as a class of fedkin.core that methods use; choose another "
            "NAME or --title"
        )
    if flags.name in METHODS:
        raise ConfigError(f"the method {flags.name} exists already: docs/methods/{flags.name}.md; choose another name")
    files = _files(flags)
    for path in files:
        if path.exists():
            raise ConfigError(f"{path} exists already, and nothing is overwritten; choose another NAME or --folder")
    if not _is_checkout(flags.folder) and find_spec(module := _module(flags.name)) is not None:
        raise ConfigError(
            f"the file {module}.py would hide the module {module} from programs that run next to it; choose another "
            "NAME"
        )
    for path, text in files.items():
        write_atomic(path, text.encode())
        screen.say(str(path))
    screen.say(_next(flags))
    return 0


def _module(name: str) -> str:
    return name.replace("-", "_")


def _kind(flags: NewFlags) -> str:
    """Return the name of the class."""
    made = re.sub("[^A-Za-z0-9]", "", _title(flags))
    return made if made[:1].isalpha() else f"Method{made}"


def _title(flags: NewFlags) -> str:
    """Return the title; without one, words as other methods write them (FedAvg), and unknown short ones in capitals."""
    known = {word.lower(): word for name in METHODS for word in get_title(name).split("-")}
    words = (known.get(w, w.upper() if len(w) <= 3 else w.capitalize()) for w in flags.name.split("-"))
    return flags.title or "-".join(words)


def _is_checkout(folder: Path) -> bool:
    return (folder / "src" / "fedkin" / "methods").is_dir()


def _files(flags: NewFlags) -> dict[Path, str]:
    module, kind, folder = _module(flags.name), _kind(flags), flags.folder
    title = _title(flags)
    method = _METHOD.format(title=title, kind=kind)
    if _is_checkout(folder):
        load, run = f"from fedkin.methods.{module} import {kind}", flags.name
        places = (
            folder / "src" / "fedkin" / "methods" / f"{module}.py",
            folder / "tests" / "golden" / f"test_{module}.py",
            folder / "docs" / "methods" / f"{flags.name}.md",
        )
    else:
        load, run = f"from {module} import {kind}", f"./{module}.py:{kind}"
        places = folder / f"{module}.py", folder / f"test_{module}.py", folder / f"{flags.name}.md"
    test = _TEST.format(title=title, kind=kind, load=load)
    return dict(zip(places, (method, test, _PAGE.format(title=title, run=run)), strict=True))


def _next(flags: NewFlags) -> str:
    """Return the next steps for the files."""
    module, kind = _module(flags.name), _kind(flags)
    if not _is_checkout(flags.folder):
        file, folder = typed(f"{flags.folder / module}.py:{kind}"), typed(flags.folder)
        return f"\nfedkin check {file}   # then: python -m pytest {folder}"
    return (
        "\nA line for src/fedkin/methods/__init__.py, in METHODS and above it:\n"
        f"    from fedkin.methods.{module} import {kind} as {kind}\n"
        f'    "{flags.name}": {kind},\n'
        f"then: python docs/generate.py; fedkin check {flags.name}"
    )
