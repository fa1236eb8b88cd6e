"""Exit code 0 where the installed build of torch asks for CUDA's packages, else 1."""

import sys
from importlib.metadata import requires

sys.exit(0 if any(r.startswith(("nvidia-", "cuda-", "triton")) for r in requires("torch") or []) else 1)
