"""`rl doctor --full` at work: its checks on the CPU, on a torch that fails, and on stub libraries."""

import contextlib
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from fake_machine import build_stubs, clean_environment, doctor, fake_torch, make_root
from machine_facts import cpu_machine, gpu_machine

from rl.doctor import probe_full
from rl.doctor.child import Child
from rl.doctor.facts import gather, work
from rl.doctor.report import as_json, as_text
from rl.doctor.schema import AllReduce, Full, Rendering, Work


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    return build_stubs(tmp_path_factory.mktemp("stubs"))


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """Spoils torch in every child: by code that runs when its Python starts."""

    def spoil(code: str) -> None:
        (tmp_path / "sitecustomize.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return spoil


class Only(Child):
    """A child that asks one thing: what else is asked is answered by nothing."""

    probe = "work"

    def __init__(self, probe: str, *arguments: str, **settings) -> None:
        super().__init__(probe if probe == self.probe else "", *arguments, **settings)


class OnlySum(Only):
    probe = "all_reduce"


def run_work(limit: float = work.WORK_LIMIT) -> Work:
    return work.full(["cpu"], Only, work_limit=limit).works[0]


def test_the_cpu_passes_every_check_that_it_can_run():
    done = run_work()
    assert (done.ended, done.device, done.error) == ("ok", 0, None)
    assert (done.matmul, done.convolution, done.bf16, done.compile) == ("", "", "", "")
    assert done.graph is None
    if torch.version.cuda is None:
        assert done.jit is None
    else:  # as in the image
        assert "libcuda.so.1" in done.jit
    assert done.to_gpu > 0
    assert done.from_gpu > 0


def on_float32(function, change):
    """A device that is wrong: `function`, its results in float32 or below changed; the reference in float64 is not."""

    def changed(*tensors, **settings):
        out = function(*tensors, **settings)
        return out if out.dtype == torch.float64 else change(out)

    return changed


def test_a_wrong_product_is_found(monkeypatch):
    assert probe_full.matmul(torch, "cpu") == ""
    monkeypatch.setattr(torch, "matmul", on_float32(torch.matmul, lambda out: out * 1.01))
    assert probe_full.matmul(torch, "cpu") == "the result is wrong by 0.01 of its largest number"


def test_a_product_that_is_no_number_is_wrong(monkeypatch):
    monkeypatch.setattr(torch, "matmul", on_float32(torch.matmul, lambda out: out * float("nan")))
    assert probe_full.matmul(torch, "cpu") == "the result is wrong by nan of its largest number"


def test_a_wrong_convolution_is_found(monkeypatch):
    conv2d = torch.nn.functional.conv2d
    monkeypatch.setattr(torch.nn.functional, "conv2d", on_float32(conv2d, lambda out: out * 1.01))
    assert probe_full.convolution(torch, "cpu").startswith("the result is wrong by 0.01")


def test_a_wrong_gradient_is_found(monkeypatch):
    class Off(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: x.clone())
        backward = staticmethod(lambda ctx, gradient: 1.01 * gradient)

    conv2d = torch.nn.functional.conv2d
    monkeypatch.setattr(torch.nn.functional, "conv2d", on_float32(conv2d, Off.apply))
    assert probe_full.convolution(torch, "cpu").startswith("the result is wrong by 0.01")


def test_a_wrong_product_in_bfloat16_is_found(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "__matmul__", on_float32(torch.Tensor.__matmul__, lambda out: out * 1.1))
    wrong = re.fullmatch(r"the result is wrong by ([\d.]+) of its largest number", probe_full.bf16(torch, "cpu"))
    # the product and its 1.1-fold are each rounded to 8 bits, the report to two digits
    assert float(wrong[1]) == pytest.approx(0.1, abs=2 * 1.1 * 2**-8 + 0.005)


def test_autocast_that_does_not_cast_is_found(monkeypatch):
    monkeypatch.setattr(torch, "autocast", lambda *_: contextlib.nullcontext())
    assert probe_full.bf16(torch, "cpu") == "autocast gave torch.float32"


def test_a_compiler_that_gives_another_function_is_found(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: lambda x: function(x) + 1)
    assert probe_full.compiled(torch, "cpu").startswith("the result is wrong")


def test_numbers_in_tf32_and_bfloat16_are_no_fault():
    x = torch.randn(1000, dtype=torch.float64)
    assert probe_full.difference(x.to(torch.bfloat16), x, 2e-2) == ""
    assert probe_full.difference(x * (1 + 2**-11), x, 2e-3) == ""


NO_TORCH = "import sys, types, time, os\ntorch = sys.modules['torch'] = types.ModuleType('torch')\n"


def test_a_check_that_raises_is_told_in_its_own_words_and_the_others_go_on(broken):
    broken(NO_TORCH + "torch.manual_seed = lambda seed: None\ntorch.version = types.SimpleNamespace(cuda=None)\n"
           "def fail(*_): raise RuntimeError('CUDA error: unspecified failure')\ntorch.randn = fail\n")  # fmt: skip
    done = run_work()
    assert (done.ended, done.step) == ("ok", "NVML under load")
    assert done.matmul == done.compile == "RuntimeError: CUDA error: unspecified failure"
    assert (done.graph, done.jit, done.to_gpu) == (None, None, None)


def test_a_check_that_never_returns_is_known_by_its_name(broken):
    broken(NO_TORCH + "torch.manual_seed = lambda seed: time.sleep(60)\n")
    done = run_work(limit=2.0)
    assert (done.ended, done.step) == ("timeout", "matmul")


def test_a_torch_that_breaks_meanwhile_is_told(broken):
    broken("import sys\nsys.modules['torch'] = None\n")
    assert run_work().error.startswith("ModuleNotFoundError: import of torch halted")


# --- PTX, compiled by the driver ---


def in_process(code: str, stubs, **variables) -> str:
    """What `code` prints with the stub libraries on the loader's path, which is read when a process starts."""
    environment = clean_environment(LD_LIBRARY_PATH=stubs, **variables)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60, check=True
    )
    return done.stdout.strip()


JIT = """
from types import SimpleNamespace
from rl.doctor import probe_full
print(repr(probe_full.jit(SimpleNamespace(version=SimpleNamespace(cuda="13.0")), "cpu")))
"""


@pytest.mark.parametrize(
    ("newest", "error"), [(90, ""), (88, "cuModuleLoadData gives 222 (CUDA_ERROR_UNSUPPORTED_PTX_VERSION)")]
)
def test_the_driver_is_asked_for_the_ptx_of_torchs_cuda(stubs, newest, error):
    assert in_process(JIT, stubs, STUB_PTX_VERSION=newest) == repr(error)


@pytest.mark.parametrize(
    ("cuda", "version", "target"),
    [("11.8", "7.8", "sm_50"), ("12.4", "8.4", "sm_50"), ("12.5", "8.5", "sm_50"), ("12.6", "8.5", "sm_50"),
     ("12.8", "8.7", "sm_50"), ("13.0", "9.0", "sm_75")],
)  # fmt: skip
def test_each_cuda_version_writes_a_ptx_version_of_its_own(cuda, version, target):
    first, second, *_ = probe_full.ptx(cuda).splitlines()
    assert (first, second) == (f".version {version}", f".target {target}")


def test_a_torch_without_cuda_compiles_no_ptx():
    assert probe_full.jit(SimpleNamespace(version=SimpleNamespace(cuda=None)), "cpu") is None


# --- NVML under load ---

UUID = "GPU-00000000-0000-0000-0000-000000000001"
SAMPLE = f"""
from rl.doctor import probe_full
reasons = []
for _ in range(2):
    probe_full.nvml("{UUID}", reasons)
"""


def test_clock_reasons_and_link_are_sampled_of_the_gpu_with_this_uuid(stubs):
    out = in_process(SAMPLE, stubs, STUB_GPU_COUNT=2, STUB_CLOCK_REASONS=64, STUB_PCIE_WIDTH=4)
    said: dict[str, object] = {}
    for line in out.splitlines():
        said |= json.loads(line)
    assert said == {"clock_reasons": [64, 64], "pcie_generation": 5, "pcie_width": 4, "pcie_width_max": 16}


def test_what_nvml_does_not_support_is_left_out(stubs):
    out = in_process(SAMPLE, stubs, STUB_GPU_COUNT=2, STUB_FAIL="nvmlDeviceGetCurrentClocksEventReasons=3")
    assert "clock_reasons" not in out
    assert "pcie_width" in out


@pytest.mark.parametrize("variables", [{"STUB_GPU_COUNT": 1}, {"STUB_NVML_INIT": 18}], ids=["no such GPU", "no NVML"])
def test_an_nvml_that_does_not_answer_is_silent(stubs, variables):
    assert in_process(SAMPLE, stubs, **variables) == ""


# --- all together ---


def test_two_ranks_sum_rightly_and_leave_no_file_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    full = work.full(["cpu", "cpu"], OnlySum)
    assert [(rank.rank, rank.ended, rank.error) for rank in full.all_reduce] == [(0, "ok", ""), (1, "ok", "")]
    assert full.all_reduce_without_p2p == ()
    assert os.listdir(tmp_path) == []


NO_RANKS = NO_TORCH + (
    "ranks = sys.modules['torch.distributed'] = torch.distributed = types.ModuleType('torch.distributed')\n"
    "ranks.init_process_group = lambda *_, **__: None\n"
    "torch.float32 = None\n"
    "torch.arange = lambda *_, **__: 1\n"
)


def test_ranks_that_fail_say_why_and_are_tried_again_without_p2p(broken):
    broken(NO_RANKS + "def fail(_): raise RuntimeError(os.environ.get('NCCL_P2P_DISABLE'))\nranks.all_reduce = fail\n")
    full = work.full(["cpu", "cpu"], OnlySum)
    assert [rank.error for rank in full.all_reduce] == ["RuntimeError: None"] * 2
    assert [rank.error for rank in full.all_reduce_without_p2p] == ["RuntimeError: 1"] * 2


def test_ranks_that_wait_for_ever_are_ended_and_known_by_their_step(broken):
    broken(NO_RANKS + "ranks.all_reduce = lambda _: time.sleep(60)\n")
    full = work.full(["cpu", "cpu"], OnlySum, all_reduce_limit=2.0)
    assert [(rank.rank, rank.ended, rank.step) for rank in full.all_reduce] == [
        (0, "timeout", "all_reduce"),
        (1, "timeout", "all_reduce"),
    ]
    assert [rank.ended for rank in full.all_reduce_without_p2p] == ["timeout"] * 2


def test_a_wrong_sum_is_found(monkeypatch, tmp_path):
    said: dict[str, object] = {}
    monkeypatch.setattr(probe_full, "say", lambda **facts: said.update(facts))
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda numbers: numbers.mul_(2))
    probe_full.all_reduce("cpu", "0", "1", str(tmp_path / "meeting"), "1")
    assert said["error"] == "the result is wrong by 1 of its largest number"


# --- a picture ---


def draw() -> Rendering:
    return work.full([], Child).rendering


def test_nothing_but_a_picture_is_tried_where_torch_has_no_gpu():
    full = work.full([], Child)
    assert (full.works, full.all_reduce) == ((), ())
    assert full.rendering.ended == "ok"


def test_mujoco_draws_a_red_ball(monkeypatch):
    pytest.importorskip("mujoco")
    pytest.importorskip("OpenGL")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    drawn = draw()
    if drawn.error and "EGL" in drawn.error:
        pytest.skip(f"this machine has no EGL: {drawn.error}")
    assert (drawn.by, drawn.error) == ("mujoco", "")
    assert drawn.vendor
    assert drawn.renderer


NO_MUJOCO = "import sys\nsys.modules['mujoco'] = None\n"


def test_without_mujoco_egl_itself_is_asked(broken):
    broken(NO_MUJOCO)
    drawn = draw()
    assert drawn.by == "eglQueryDevicesEXT"
    assert drawn.error or drawn.vendor  # as this machine has it


def test_without_any_library_the_loaders_words_are_kept(broken):
    broken(
        NO_MUJOCO + "import ctypes\nreal = ctypes.CDLL\n"
        "ctypes.CDLL = lambda name, *a, **b: real('no-' + name if 'EGL' in str(name) else name, *a, **b)\n"
    )
    drawn = draw()
    assert drawn.error == "no-libEGL.so.1: cannot open shared object file: No such file or directory"


FAKE_MUJOCO = """
class MjModel: from_xml_string = staticmethod(lambda text: None)
def MjData(model): pass
def mj_forward(model, data): pass
class Renderer:
    def __init__(self, *_): {fails}
    __enter__ = lambda self: self
    __exit__ = update_scene = lambda self, *_: None
    def render(self):
        class Picture(dict):
            def __missing__(self, at): return 0 if len(at) == 3 else self
            def tolist(self): return [0, 0, 0]
        return Picture()
"""


@pytest.mark.parametrize(
    ("fails", "error"),
    [
        ("pass", "the middle of a red ball is [0, 0, 0]"),
        ("raise RuntimeError('Cannot initialize a EGL device display')",
         "RuntimeError: Cannot initialize a EGL device display"),
    ],
)  # fmt: skip
def test_a_black_picture_and_a_renderer_that_fails_are_errors(tmp_path, monkeypatch, fails, error):
    (tmp_path / "mujoco.py").write_text(FAKE_MUJOCO.format(fails=fails))
    (tmp_path / "OpenGL.py").write_text(
        "import types\nGL = types.SimpleNamespace(glGetString=lambda name: name, GL_VENDOR=b'v', GL_RENDERER=b'r')\n"
    )
    library = ["-shared", "-o", tmp_path / "libEGL.so.1", "-x", "c", "/dev/null"]  # it must be there, not do anything
    subprocess.run(["cc", *library], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert draw().error == error


# --- the command ---


def test_full_puts_each_gpu_that_torch_sees_to_work(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(fake_torch(tmp_path, gpus=2))
    asked = []

    class Asked:
        def __init__(self, probe, *arguments, **_settings) -> None:
            self.probe = probe
            asked.append((probe, *arguments[:3]))

        def collect(self):
            torch = {"available": True, "count": 2, "version": "2.13.0"}
            return {"ended": "ok", "error": ""} | (torch if self.probe == "torch" else {})

        def kill(self) -> None: ...

    facts = gather(tmp_path / "root", full=True, ask=Asked)
    assert asked[-5:] == [
        ("work", "cuda:0"),
        ("work", "cuda:1"),
        ("all_reduce", "cuda:0", "0", "2"),
        ("all_reduce", "cuda:1", "1", "2"),
        ("render",),
    ]
    assert [done.device for done in facts.full.works] == [0, 1]
    assert gather(tmp_path / "root", ask=Asked).full == Full()


def test_a_cpu_machine_passes_the_full_check(tmp_path):
    torch = fake_torch(tmp_path / "packages", cuda=None)
    done = doctor(make_root(tmp_path / "root"), "--full", "--json", python_path=torch)
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert report["full"]["works"] == []
    assert report["full"]["rendering"]["ended"] == "ok"


def test_a_gpu_that_torch_promises_and_that_does_no_work_is_degraded(tmp_path, stubs):
    torch = fake_torch(tmp_path / "packages", gpus=1)  # has no matmul
    root = make_root(
        tmp_path / "root", kernel_module=True, pci_driver="nvidia", device_nodes=("nvidiactl", "nvidia0", "nvidia-uvm")
    )
    done = doctor(root, "--full", python_path=torch, LD_LIBRARY_PATH=stubs)
    assert done.returncode == 1
    assert done.stdout.startswith("GPU degraded: a GPU does not get through plain work: 'matmul' fails\n")
    assert "  work    GPU 0: right: nothing" in done.stdout


WORK = Work(ended="ok", device=0, matmul="", convolution="", bf16="", graph="", compile="", jit="", to_gpu=52.04)
DRAWN = Rendering(ended="ok", error="", by="mujoco", vendor="NVIDIA Corporation", renderer="NVIDIA H200/PCIe/SSE2")


def test_the_report_has_a_line_for_each_part_of_the_full_check():
    works = (WORK, Work(ended="ok", device=1, matmul="", graph="RuntimeError: no", from_gpu=6.0))
    sums = (AllReduce(ended="ok", rank=0, error=""), AllReduce(ended="ok", rank=1, error=""))
    text = as_text(gpu_machine(gpus=2, full=Full(works=works, all_reduce=sums, rendering=DRAWN)))
    assert [line for line in text.splitlines() if line.startswith(("  work", "  NCCL", "  EGL"))] == [
        "  work    GPU 0: right: matmul, convolution, bf16, graph, compile, jit; copies 52.0 GB/s to it",
        "  work    GPU 1: right: matmul; copies 6.0 GB/s from it",
        "  NCCL    sum over 2 GPUs: right",
        "  EGL     draws by NVIDIA Corporation, NVIDIA H200/PCIe/SSE2",
    ]
    failed = Full(all_reduce=(AllReduce(ended="timeout"),), rendering=Rendering(ended="timeout"))
    assert as_text(gpu_machine(full=failed)).count("fails") >= 2


def test_a_healthy_gpu_with_a_note_is_ready_and_the_note_has_its_cause():
    facts = gpu_machine(full=Full(works=(WORK,), rendering=Rendering(ended="ok", error="no libEGL.so.1")))
    text = as_text(facts)
    assert text.startswith("GPU ready: ")
    assert "\nNote [rendering-failed]: pictures cannot be drawn without a screen\n" in text
    assert "Why [" not in text
    assert as_json(facts)["verdict"]["exit_code"] == 0


def test_a_cpu_machine_with_a_note_is_still_a_cpu_machine():
    text = as_text(cpu_machine(full=Full(rendering=Rendering(ended="ok", error="no libEGL.so.1"))))
    assert text.startswith("CPU only: no NVIDIA GPU is visible")
    assert "Note [rendering-failed]" in text
