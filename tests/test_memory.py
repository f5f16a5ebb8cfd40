"""Free memory: of the machine, and of the control groups that containers are."""

import math
import subprocess
import sys

import pytest

from intertwine._memory import check_fits, free_bytes, readable

GB = 10**9
HOST = {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {64 * GB // 1024} kB\n"}
MOUNT_2 = "30 24 0:26 {inside} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
MOUNT_1 = (
    "25 24 0:20 / /sys/fs/cgroup ro - tmpfs tmpfs rw\n"
    "33 25 0:29 {inside} /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
    "34 25 0:30 {inside} /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
)


def tree(root, files):
    for name, text in {**HOST, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(str(text))
    return root


def group_2(path, most="max", high="max", used=0, cached=0):
    at = f"sys/fs/cgroup/{path}".rstrip("/")
    return {
        f"{at}/memory.max": f"{most}\n",
        f"{at}/memory.high": f"{high}\n",
        f"{at}/memory.current": f"{used}\n",
        f"{at}/memory.stat": f"anon 5\nactive_file 7\ninactive_file {cached}\n",
    }


def group_1(path, limit, used=0, cached=0):
    at = f"sys/fs/cgroup/memory/{path}".rstrip("/")
    return {
        f"{at}/memory.limit_in_bytes": limit,
        f"{at}/memory.usage_in_bytes": used,
        f"{at}/memory.stat": f"inactive_file 3\ntotal_inactive_file {cached}\n",
    }


def version_2(path, inside="/", **groups):
    return {"proc/self/cgroup": f"0::{path}\n", "proc/self/mountinfo": MOUNT_2.format(inside=inside)}


def version_1(path, inside="/"):
    return {
        "proc/self/cgroup": f"5:cpu,cpuacct:/else\n4:memory:{path}\n1:name=systemd:/x\n0::/none\n",
        "proc/self/mountinfo": MOUNT_1.format(inside=inside),
    }


CASES = {
    "no control groups": ({}, 64 * GB),
    "v2 of a container with its own namespace": ({**version_2("/"), **group_2("", most=GB, used=GB // 4)}, 0.75 * GB),
    "v2 without limits": ({**version_2("/a"), **group_2("a"), **group_2("")}, 64 * GB),
    "v2 high below max": ({**version_2("/a"), **group_2("a", most=3 * GB, high=GB)}, GB),
    "v2 a parent is narrower": (
        {**version_2("/pod/box"), **group_2("pod/box", most=8 * GB), **group_2("pod", most=2 * GB, used=GB)},
        GB,
    ),
    "v2 a grandparent is narrower": (
        {**version_2("/slice/pod/box"), **group_2("slice/pod/box"), **group_2("slice", high=3 * GB)},
        3 * GB,
    ),
    "v2 page caches count as free": ({**version_2("/a"), **group_2("a", most=GB, used=GB, cached=GB // 2)}, GB // 2),
    "v2 more in use than allowed": ({**version_2("/a"), **group_2("a", high=GB, used=2 * GB)}, 0),
    "v2 mounted below the path": (
        {**version_2("/docker/77/sub", inside="/docker/77"), **group_2("sub", most=GB), **group_2("")},
        GB,
    ),
    "v2 seen from another namespace": ({**version_2("/../../else"), **group_2("", most=GB)}, GB),
    "v1": ({**version_1("/docker/77"), **group_1("docker/77", 2 * GB, used=GB)}, GB),
    "v1 mounted as the root": ({**version_1("/docker/77", "/docker/77"), **group_1("", 2 * GB, GB, GB // 2)}, 1.5 * GB),
    "v1 without a limit": ({**version_1("/"), **group_1("", 9223372036854771712, GB)}, 64 * GB),
    "v1 a parent is narrower": ({**version_1("/p/c"), **group_1("p/c", 9 * GB), **group_1("p", GB)}, GB),
    "both at once": (
        {
            "proc/self/cgroup": "4:memory:/a\n0::/b\n",
            "proc/self/mountinfo": MOUNT_1.format(inside="/")
            + MOUNT_2.format(inside="/").replace("/cgroup ", "/cgroup/unified "),
            **group_1("a", 5 * GB),
            **{k.replace("cgroup/", "cgroup/unified/"): v for k, v in group_2("b", most=4 * GB).items()},
        },
        4 * GB,
    ),
    "damaged files": ({"proc/self/cgroup": "x\n::\n4\n", "proc/self/mountinfo": "\n - \n1 2 - cgroup2\n"}, 64 * GB),
}


@pytest.mark.parametrize("case", CASES)
def test_free_memory_is_the_least_that_any_control_group_leaves(case, tmp_path):
    files, expected = CASES[case]
    assert free_bytes(root=tree(tmp_path, files)) == pytest.approx(expected, rel=1e-6)


def test_this_machine_has_some():
    assert 2**20 < free_bytes() < 2**60


def test_without_files_the_machine_is_asked(tmp_path):
    assert 2**20 < free_bytes(root=tmp_path) < math.inf


@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -v")
def test_a_limit_of_the_process_counts():
    code = (
        "import resource; from intertwine._memory import free_bytes; "
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30)); print(free_bytes() < 2**30)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "True"


def test_a_refusal_says_what_and_what_to_do():
    with pytest.raises(
        KeyError, match=r"it must fit in memory. Got many, 9.31e\+20 GiB where .* are free. Take fewer."
    ):
        check_fits(1e30, "it", "many", "Take fewer.", error=KeyError)
    assert check_fits(1, "it", "one", "") is None
    assert readable(1536) == "1.5 KiB"
