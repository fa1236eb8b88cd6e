"""Cores and memory that a process may use: those of the machine, or fewer where its control group limits it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedkin.core.machine import cores, memory

GIB = 1 << 30
V2, V1 = "0::/pod/box\n", "5:cpu,cpuacct:/pod/box\n4:memory:/pod/box\n1:name=systemd:/pod/box\n0::/pod/box\n"
# files below sys/fs/cgroup, and the cores and bytes that they leave; a machine that runs this has more than both
CASES: dict[str, tuple[str, dict[str, str], int | None, int | None]] = {
    "nothing": ("", {}, None, None),
    "no limit": (V2, {"cpu.max": "max 100000", "memory.max": "max"}, None, None),
    "one core": (V2, {"pod/box/cpu.max": "100000 100000", "pod/box/memory.max": f"{GIB}"}, 1, GIB),
    "half a core": (V2, {"pod/box/cpu.max": "50000 100000"}, 1, None),
    "in a group that is limited": (V2, {"pod/cpu.max": "10000 10000", "pod/box/cpu.max": "max 100000"}, 1, None),
    "the smaller of two": (V2, {"pod/memory.max": f"{GIB}", "pod/box/memory.max": f"{2 * GIB}"}, None, GIB),
    "of a container that sees its own group alone": (V2, {"cpu.max": "100000 100000", "memory.max": f"{GIB}"}, 1, GIB),
    "more than there is": (V2, {"cpu.max": f"{10**12} 100000", "memory.max": f"{1 << 60}"}, None, None),
    "version 1": (
        V1,
        {
            "cpu,cpuacct/pod/box/cpu.cfs_quota_us": "150000",
            "cpu,cpuacct/pod/box/cpu.cfs_period_us": "100000",
            "memory/pod/memory.limit_in_bytes": f"{GIB}",
            "memory/pod/box/memory.limit_in_bytes": "9223372036854771712",
        },
        1,
        GIB,
    ),
    "version 1 without a limit": (
        V1,
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000", "memory/memory.limit_in_bytes": f"{1 << 62}"},
        None,
        None,
    ),
    "version 1 in a container": (
        V1,
        {"cpu/cpu.cfs_quota_us": "20000", "cpu/cpu.cfs_period_us": "20000", "memory/memory.limit_in_bytes": f"{GIB}"},
        1,
        GIB,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_limits_of_control_groups(case: str, tmp_path: Path) -> None:
    """The smallest limit of the process's group and of those around it; the machine's figures where there is none."""
    groups, files, processors, size = CASES[case]
    for name, text in {
        "proc/self/cgroup": groups,
        **{f"sys/fs/cgroup/{n}": f"{t}\n" for n, t in files.items()},
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    bare = tmp_path / "bare"
    assert cores(tmp_path) == (processors or cores(bare))
    assert memory(tmp_path) == (size or memory(bare))
