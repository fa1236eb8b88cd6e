"""Start from trained values: a ``state_dict`` in a safetensors file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from fedkin.core.errors import ModelError

_PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".tar")
_COUNTER = "num_batches_tracked"  # of batch normalisation; nothing reads it where momentum is a number


def started(make: Callable[[], nn.Module], file: Path | str) -> Callable[[], nn.Module]:
    """Return a function that makes networks: the first with the values of the file, further ones drawn anew.

    Raises:
        ModelError: when called; see `read_weights` and `put_weights`.
    """
    first = True

    def made() -> nn.Module:
        nonlocal first
        module = make()
        if first:
            put_weights(module, read_weights(file), str(file))
            first = False
        return module

    return made


def read_weights(file: Path | str) -> dict[str, Tensor]:
    """Return the named tensors of a safetensors file.

    Raises:
        ModelError: it is missing, damaged, or of a format that could run code when it is read.
    """
    path = Path(file)
    if path.suffix.lower() in _PICKLED:
        raise ModelError(
            f"{path} is a pickle by its name, which can run code when it is read, so fedkin reads none. Convert it "
            "where you trust it: from safetensors.torch import save_file; import torch; "
            f"save_file(torch.load({path.name!r}, map_location='cpu', weights_only=True), "
            f"{path.with_suffix('.safetensors').name!r})"
        )
    if not path.is_file():
        raise ModelError(f"there is no weights file {path}; expected a state_dict as .safetensors")
    try:
        return load(path.read_bytes())
    except (SafetensorError, ValueError) as e:
        raise ModelError(
            f"{path} is not a whole safetensors file: {e}; write it with safetensors.torch.save_file"
        ) from e


def put_weights(module: nn.Module, weights: dict[str, Tensor], where: str) -> None:
    """Give a network the values of a file, name by name.

    Raises:
        ModelError: names are missing, left over, or stand for other shapes; all of them are named.
    """
    wanted = module.state_dict()
    missing = [n for n in wanted if n not in weights and not n.endswith(_COUNTER)]
    unknown = [n for n in weights if n not in wanted]
    faults = [f"missing: {_few(missing)}"] if missing else []
    faults += [f"not in the network: {_few(unknown)}"] if unknown else []
    faults += [
        f"{n} is {list(weights[n].shape)}, the network has {list(t.shape)}"
        for n, t in wanted.items()
        if n in weights and weights[n].shape != t.shape
    ]
    if faults:
        raise ModelError(f"{where} does not fit {type(module).__name__}: {'; '.join(faults)}")
    module.load_state_dict(weights, strict=False)  # what may be missing are counters alone


def _few(names: Iterable[str], most: int = 8) -> str:
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
