"""What NVML and the driver API are asked, of the stub libraries, and what is read of the driver's library files."""

import os
import struct
from pathlib import Path

import pytest
from fake_machine import REPO, build_stubs, clean_environment, make_root

from rl.doctor.facts import gather
from rl.doctor.facts import libraries as files
from rl.doctor.facts.libraries import libraries
from rl.doctor.rules import judge
from rl.doctor.schema import Facts


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    return build_stubs(tmp_path_factory.mktemp("stubs"))


@pytest.fixture
def ask(tmp_path, stubs, monkeypatch):
    """Gather with the stub libraries, whose answers the arguments set."""
    for name in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stubs))
    root = make_root(
        tmp_path / "root",
        kernel_module=True,
        pci_driver="nvidia",
        device_nodes=("nvidiactl", "nvidia0", "nvidia-uvm"),
    )

    def gathered(**answers) -> Facts:
        for name, value in answers.items():
            monkeypatch.setenv(name, str(value))
        return gather(root, with_torch=False)

    return gathered


def test_all_that_a_healthy_gpu_answers_is_kept(ask):
    nvml = ask(STUB_GPU_COUNT=2).nvml
    gpu = nvml.gpus[1]
    assert (nvml.ended, nvml.init, nvml.unknown_functions) == ("ok", 0, ())
    assert nvml.path == os.environ["LD_LIBRARY_PATH"] + "/libnvidia-ml.so.1"
    assert nvml.init_seconds is not None
    assert (gpu.error, gpu.name, gpu.pci, gpu.minor) == (None, "NVIDIA H200", "00000000:02:00.0", 1)
    assert (gpu.memory_bytes, gpu.memory_used, gpu.capability) == (141 * 2**30, 2**30, (9, 0))
    assert (gpu.compute_mode, gpu.mig, gpu.mig_uuids, gpu.persistence) == (0, False, (), True)
    assert (gpu.utilization, gpu.temperature, gpu.power, gpu.clock_reasons) == (42, 40, 123.0, 1)
    assert (gpu.pcie_width, gpu.pcie_width_max, gpu.virtual) == (16, 16, False)
    assert (gpu.remap_pending, gpu.remap_failed, gpu.recovery_action, gpu.fabric_state) == (False, False, 0, 0)


def test_a_healthy_machine_asked_through_the_stubs_has_no_finding_of_the_driver(ask):
    facts = ask()
    torch = ("torch", "python", "cache", "compile", "egl")  # what this machine's own software may lack
    assert [finding.id for finding in judge(facts) if not finding.id.startswith(torch)] == []


STATES = {
    "compute-mode": {"STUB_COMPUTE_MODE": 2},
    "gpu-throttled": {"STUB_CLOCK_REASONS": 0x40},
    "gpu-reset-pending": {"STUB_REMAP_PENDING": 1},
    "gpu-memory-failed": {"STUB_REMAP_FAILED": 1},
    "gpu-needs-reset": {"STUB_RECOVERY": 2},
    "gpu-memory-held": {"STUB_MEMORY_USED": 100_000},
    "gpu-off-the-bus": {"STUB_FAIL": "nvmlDeviceGetHandleByIndex=15"},
    "fabric-manager": {"STUB_CUINIT": 802, "STUB_FABRIC": 2},
    "mps-unreachable": {"STUB_CUINIT": 805},
}


@pytest.mark.parametrize(("finding", "answers"), STATES.items(), ids=STATES.keys())
def test_a_state_that_nvml_tells_becomes_a_finding(ask, finding, answers):
    assert finding in [found.id for found in judge(ask(**answers))]


def test_mig_and_vgpus_are_known_and_their_instances_listed(ask):
    gpu = ask(STUB_MIG=1, STUB_VIRTUAL=2, STUB_PERSISTENCE=0, STUB_PCIE_WIDTH=4).nvml.gpus[0]
    assert (gpu.mig, gpu.virtual, gpu.persistence, gpu.pcie_width) == (True, True, False, 4)
    assert gpu.mig_uuids == ("MIG-00000000-0000-0000-0000-000000000000", "MIG-00000000-0000-0000-0000-000000000001")


def test_what_is_not_supported_is_unknown_and_no_fault(ask):
    asked = "MigMode GpuFabricInfoV RemappedRows FieldValues PersistenceMode UtilizationRates PowerUsage PciInfo"
    facts = ask(STUB_FAIL=",".join(f"nvmlDeviceGet{name}=3" for name in asked.split()))
    gpu = facts.nvml.gpus[0]
    assert (gpu.mig, gpu.fabric_state, gpu.remap_failed, gpu.recovery_action, gpu.persistence) == (None,) * 5
    assert (gpu.utilization, gpu.power, gpu.pci, gpu.error) == (None, None, "", None)
    assert (gpu.remap_pending, gpu.name) == (False, "NVIDIA H200")  # by page retirement, as before Ampere
    assert facts.nvml.unknown_functions == ()


def test_a_function_that_an_old_driver_lacks_is_named_and_its_elder_asked(ask):
    facts = ask(STUB_FAIL="nvmlDeviceGetCurrentClocksEventReasons=13", STUB_CLOCK_REASONS=4)
    assert facts.nvml.unknown_functions == ("nvmlDeviceGetCurrentClocksEventReasons",)
    assert facts.nvml.gpus[0].clock_reasons == 4


def test_a_gpu_that_is_lost_among_others_keeps_the_others_answers(ask):
    lost, gone, there = ask(
        STUB_GPU_COUNT=3, STUB_FAIL="nvmlDeviceGetPersistenceMode=15@0,nvmlDeviceGetHandleByIndex=999@1"
    ).nvml.gpus
    assert (lost.error, lost.name) == (15, "NVIDIA H200")
    assert (gone.error, gone.name) == (999, "")
    assert (there.error, there.compute_mode) == (None, 0)


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetRemappedRows"])
def test_a_gpu_whose_call_hangs_is_named_with_the_call(tmp_path, stubs, ask, monkeypatch, call):
    monkeypatch.setenv("STUB_HANG", call)
    nvml = gather(tmp_path / "root", with_torch=False, driver_limit=2.0).nvml
    assert (nvml.ended, nvml.count) == ("timeout", 1)
    assert nvml.step.startswith(call)


def test_the_folder_of_mps_is_seen(ask, tmp_path):
    assert ask(CUDA_MPS_PIPE_DIRECTORY=tmp_path).driver_api.mps_folder == str(tmp_path)
    assert ask(CUDA_MPS_PIPE_DIRECTORY=tmp_path / "none").driver_api.mps_folder is None


def test_the_library_is_known_by_its_file_behind_all_links(ask, stubs, tmp_path, monkeypatch):
    real = tmp_path / "compat/libcuda.so.580.95.05"
    real.parent.mkdir()
    real.write_bytes((stubs / "libcuda.so.1").read_bytes())
    (tmp_path / "compat/libcuda.so.1").symlink_to(real.name)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}/compat:{stubs}")
    facts = ask(STUB_CUINIT=804)
    assert facts.driver_api.path == str(real)
    assert facts.driver_api_alone.load_error  # without LD_LIBRARY_PATH there is none here
    assert judge(facts)[0].id == "compat-unsupported"


# --- files ---


def library(root, folder: str, version: str) -> None:
    (root / folder).mkdir(parents=True, exist_ok=True)
    (root / folder / f"libcuda.so.{version}").write_text("a library")
    (root / folder / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")


def cache(root, *entries: tuple[int, str], old: bool = False) -> None:
    """Write an ld.so.cache as glibc's ldconfig does: flags and path of each library."""
    words, table = b"", b""
    begin = 48 + 24 * len(entries)
    for flags, path in entries:
        name = begin + len(words)
        words += path.rsplit("/", 1)[-1].encode() + b"\0"
        table += struct.pack("=iIIIQ", flags, name, begin + len(words), 0, 0)
        words += path.encode() + b"\0"
    head = b"glibc-ld.so.cache1.1" + struct.pack("=II", len(entries), len(words)) + bytes(20)
    before = b"ld.so-1.7.0\0" + struct.pack("=I", 0) if old else b""
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/ld.so.cache").write_bytes(before + head + table + words)


CUDA, ARM64, X86_64, I386 = "libcuda.so.1", 0x0A03, 0x0303, 0x0003


@pytest.mark.parametrize("old", [False, True])
def test_every_libcuda_is_listed_in_the_loaders_order(tmp_path, old):
    library(tmp_path, "usr/local/cuda-13.0/compat", "580.95.05")
    library(tmp_path, "opt/lib", "520.61.05")
    library(tmp_path, "usr/lib/x86_64-linux-gnu", "535.54.03")
    library(tmp_path, "usr/lib/i386-linux-gnu", "535.54.03")
    wanted = f"/usr/lib/x86_64-linux-gnu/{CUDA}"
    others = (X86_64, "/usr/lib/libc.so.6"), (I386, f"/usr/lib/i386-linux-gnu/{CUDA}")
    cache(tmp_path, *others, (X86_64, f"/usr/local/cuda-13.0/compat/{CUDA}"), (X86_64, wanted), old=old)
    found = libraries(tmp_path, {"LD_LIBRARY_PATH": "/nowhere::/opt/lib/:relative"})
    assert list(found.libcuda.items()) == [
        (f"/opt/lib/{CUDA}", "/opt/lib/libcuda.so.520.61.05"),
        (f"/usr/local/cuda-13.0/compat/{CUDA}", "/usr/local/cuda-13.0/compat/libcuda.so.580.95.05"),
        (wanted, "/usr/lib/x86_64-linux-gnu/libcuda.so.535.54.03"),
    ]
    assert found.compat == "/usr/local/cuda-13.0/compat"


def test_the_loaders_cache_of_an_arm_machine_is_read(tmp_path):
    library(tmp_path, "usr/lib/tegra", "1.1")
    cache(tmp_path, (ARM64, f"/usr/lib/tegra/{CUDA}"))
    assert libraries(tmp_path, {}).libcuda == {f"/usr/lib/tegra/{CUDA}": "/usr/lib/tegra/libcuda.so.1.1"}


@pytest.mark.parametrize("content", [b"", b"garbage", b"glibc-ld.so.cache1.1", b"glibc-ld.so.cache1.1" + b"\xff" * 99])
def test_a_cache_that_is_none_is_no_error(tmp_path, content):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(content)
    assert libraries(tmp_path, {"LD_LIBRARY_PATH": "/" + "x" * 5000}).libcuda == {}


def test_this_machines_own_cache_is_understood(monkeypatch):
    monkeypatch.setattr(files, "LIBCUDA", "libc.so.6")  # which every machine with glibc has in it
    assert [path for path in files._cached(Path("/etc/ld.so.cache")) if path.endswith("/libc.so.6")]


def test_compat_is_found_where_only_the_plain_folder_is(tmp_path):
    library(tmp_path, "usr/local/cuda/compat", "560.35.05")
    assert libraries(tmp_path, {}).compat == "/usr/local/cuda/compat"
    assert libraries(tmp_path / "usr", {}).compat is None


def test_an_empty_file_is_no_compat(tmp_path):
    library(tmp_path, "usr/local/cuda-13.0/compat", "580.95.05")
    (tmp_path / "usr/local/cuda-13.0/compat/libcuda.so.580.95.05").write_text("")
    assert libraries(tmp_path, {}).compat is None


def test_preloaded_libraries_come_from_the_variable_and_the_file(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.preload").write_text("/usr/local/vgpu/libvgpu.so\n")
    found = libraries(tmp_path, {"LD_PRELOAD": "/a.so:/b.so /c.so"}).preload
    assert found == ("/a.so", "/b.so", "/c.so", "/usr/local/vgpu/libvgpu.so")


def test_the_files_that_set_the_search_path_are_named_and_nothing_else_of_them_is_kept(tmp_path):
    for folder in ("etc/profile.d", "home/ann"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/environment").write_text('TOKEN=hunter2\nLD_LIBRARY_PATH="/a/stubs:/b"\n')
    (tmp_path / "etc/profile.d/cuda.sh").write_text("export TOKEN=hunter2 LD_LIBRARY_PATH=/c; export PATH=/bin\n")
    (tmp_path / "home/ann/.bashrc").write_text("# LD_LIBRARY_PATH=/no\nMY_LD_LIBRARY_PATH=/no\nLD_LIBRARY_PATH=/d:$X\n")
    (tmp_path / "home/ann/.profile").write_text("# nothing\n")
    found = libraries(tmp_path, {"HOME": "/home/ann"}).environment_files
    assert found == {"/etc/environment": "/a/stubs:/b", "/etc/profile.d/cuda.sh": "/c", "~/.bashrc": "/d:$X"}
