"""The child's side of `rl doctor --full`: `python -P probe_full.py CHECK …` puts one device to work.

A lone script, as probe.py is, and it speaks in the same way. Every check takes the device, so that the CPU, which is
right by definition, runs the same lines in the tests.
"""

import contextlib
import ctypes
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

CHANNEL = 1
COPY_BYTES = 256 * 2**20
LOAD_SECONDS = 2.0


def say(**facts: object) -> None:
    """Send facts to the parent at once."""
    os.write(CHANNEL, json.dumps(facts).encode() + b"\n")


def work(device: str) -> None:
    """Everything that one device is asked to do, the most basic first."""
    say(step="import torch")
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - a torn install raises anything
        return say(error=_words(error))
    checks: dict[str, Callable[[Any, str], str | None]] = {
        "matmul": matmul, "convolution": convolution, "bf16": bf16, "graph": graph, "jit": jit, "compile": compiled
    }  # fmt: skip
    for name, check in checks.items():
        say(step=name)
        try:
            torch.manual_seed(0)
            say(**{name: check(torch, device)})
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            say(**{name: _words(error)})
    for name, target in {"to_gpu": device, "from_gpu": "cpu"}.items():
        say(step=f"copy {name}")
        with contextlib.suppress(Exception):  # no memory left to lock or on the GPU: a speed not known is no fault
            say(**{name: copy_speed(torch, device, target)})
    say(step="NVML under load")
    if device != "cpu":  # GPU only
        with contextlib.suppress(Exception):
            under_load(torch, device)
    return None


def matmul(torch: Any, device: str) -> str:  # noqa: ANN401 - whatever was importable under that name
    """A product in float32 against the CPU's in float64. TF32, which has a mantissa of 10 bits, is near enough."""
    a, b = torch.randn(512, 384), torch.randn(384, 256)
    return difference(torch.matmul(a.to(device), b.to(device)), a.double() @ b.double(), 2e-3)


def convolution(torch: Any, device: str) -> str:  # noqa: ANN401
    """The Nature CNN's first convolution, and its gradient, against the CPU in float64."""

    def run(frames: Any, weight: Any) -> tuple[Any, Any]:  # noqa: ANN401
        weight = weight.detach().requires_grad_()
        out = torch.nn.functional.conv2d(frames, weight, stride=4)
        out.square().sum().backward()
        return out, weight.grad

    frames, weight = torch.randn(16, 4, 84, 84), torch.randn(32, 4, 8, 8) / 16
    here, there = run(frames.double(), weight.double()), run(frames.to(device), weight.to(device))
    return difference(there[0], here[0], 2e-3) or difference(there[1], here[1], 2e-3)


def bf16(torch: Any, device: str) -> str | None:  # noqa: ANN401
    """A product under autocast in bfloat16, with its mantissa of 7 bits; None where the hardware has no such unit."""
    if device != "cpu" and torch.cuda.get_device_capability(device) < (8, 0):  # GPU only
        return None
    a, b = torch.randn(512, 384), torch.randn(384, 256)
    with torch.autocast(device.split(":")[0], torch.bfloat16):
        product = a.to(device) @ b.to(device)
    if product.dtype != torch.bfloat16:
        return f"autocast gave {product.dtype}"
    return difference(product, a.double() @ b.double(), 2e-2)


def graph(torch: Any, device: str) -> str | None:  # noqa: ANN401
    """Record a layer as a CUDA graph, replay it on other numbers, and compare with the CPU."""
    if device != "cpu":  # GPU only
        x, weight = torch.randn(64, 128), torch.randn(128, 128)
        x_there, weight_there = torch.zeros_like(x, device=device), weight.to(device)
        with torch.cuda.device(device):
            side = torch.cuda.Stream()  # once before the recording, on another stream: cuBLAS makes its workspace
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.relu(x_there @ weight_there)
            torch.cuda.current_stream().wait_stream(side)
            recording = torch.cuda.CUDAGraph()
            with torch.cuda.graph(recording):
                out = torch.relu(x_there @ weight_there)
            x_there.copy_(x)
            recording.replay()
        return difference(out, torch.relu(x.double() @ weight.double()), 2e-3)
    return None


def compiled(torch: Any, device: str) -> str:  # noqa: ANN401
    """One kernel that torch.compile makes, against eager code on the CPU."""

    def layer(x: Any) -> Any:  # noqa: ANN401
        return (torch.tanh(x) * x + 1).sum(dim=1)

    x = torch.randn(64, 128)
    return difference(torch.compile(layer)(x.to(device)), layer(x.double()), 1e-4)


def jit(torch: Any, device: str) -> str | None:  # noqa: ANN401
    """Let the driver compile an empty kernel, in PTX of the toolkit that torch was built with.

    A driver older than that toolkit runs its finished kernels, and refuses its PTX: 222. None without CUDA.
    """
    if torch.version.cuda is None:
        return None
    if device != "cpu":  # GPU only
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)  # makes its context the current one of this thread
    driver, module, name = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_char_p()
    code = driver.cuModuleLoadData(ctypes.byref(module), ptx(torch.version.cuda).encode())
    driver.cuGetErrorName(code, ctypes.byref(name))
    return f"cuModuleLoadData gives {code} ({(name.value or b'no name').decode()})" if code else ""


def ptx(cuda: str) -> str:
    """An empty kernel in the PTX version that CUDA `cuda` writes: 11.8 → 7.8, 12.4 → 8.4, 12.6 → 8.5, 13.0 → 9.0."""
    major, minor = (int(part) for part in cuda.split(".")[:2])
    minor -= major == 12 and minor >= 6  # 12.5 and 12.6 share 8.5
    target = "sm_75" if major >= 13 else "sm_50"  # the oldest that it serves: code for it runs on all newer GPUs
    return f".version {major - 4}.{minor}\n.target {target}\n.address_size 64\n.visible .entry empty() {{ ret; }}\n"


def copy_speed(torch: Any, device: str, target: str) -> float:  # noqa: ANN401
    """GB/s between pinned memory and the device, to `target`; the best of five."""
    host = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=device != "cpu")
    on_device = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    to, source = (host, on_device) if target == "cpu" else (on_device, host)
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        to.copy_(source, non_blocking=True)
        if device != "cpu":  # GPU only
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    return round(COPY_BYTES / min(seconds) / 1e9, 2)


def under_load(torch: Any, device: str) -> None:  # noqa: ANN401 # GPU only
    """Multiply for two seconds, and ask NVML three times in between."""
    a = torch.randn(4096, 4096, device=device)
    began, samples = time.monotonic(), 0
    reasons: list[int] = []
    while time.monotonic() - began < LOAD_SECONDS:
        for _ in range(20):
            a @ a
        if time.monotonic() - began > LOAD_SECONDS * (samples + 1) / 4 and samples < 3:
            samples += 1  # before the wait: the GPU is at work
            nvml(f"GPU-{torch.cuda.get_device_properties(device).uuid}", reasons)
        torch.cuda.synchronize(device)


def nvml(uuid: str, reasons: list[int]) -> None:
    """Clock reasons, added to `reasons`, and PCIe link of one GPU at this moment; silent where NVML does not answer."""
    try:
        import pynvml

        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except Exception:  # noqa: BLE001 - the doctor's own probe of NVML says why
        return
    with contextlib.suppress(Exception):  # each alone: one that is not supported is no reason to drop the others
        reasons.append(pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))
        say(clock_reasons=reasons)
    with contextlib.suppress(Exception):
        say(pcie_generation=pynvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu))
    with contextlib.suppress(Exception):
        say(pcie_width=pynvml.nvmlDeviceGetCurrPcieLinkWidth(gpu))
    with contextlib.suppress(Exception):
        say(pcie_width_max=pynvml.nvmlDeviceGetMaxPcieLinkWidth(gpu))


def all_reduce(device: str, rank: str, world_size: str, meeting: str, p2p: str) -> None:
    """One rank of a sum over all devices, by NCCL on GPUs and gloo on the CPU. They meet at the file `meeting`."""
    if not int(p2p):
        os.environ["NCCL_P2P_DISABLE"] = "1"
    say(rank=int(rank), step="import torch")
    try:
        import torch
        import torch.distributed as ranks

        if device != "cpu":  # GPU only
            torch.cuda.set_device(device)
        say(step="init_process_group")
        ranks.init_process_group(
            "gloo" if device == "cpu" else "nccl",
            init_method=f"file://{meeting}",
            rank=int(rank),
            world_size=int(world_size),
            timeout=timedelta(minutes=10),  # the parent ends it sooner, and then the last step is known
        )
        say(step="all_reduce")
        numbers = torch.arange(2**18, dtype=torch.float32, device=device) * (int(rank) + 1)
        ranks.all_reduce(numbers)
        total = int(world_size) * (int(world_size) + 1) // 2
        say(error=difference(numbers, torch.arange(2**18).double() * total, 1e-6), step="destroy_process_group")
        ranks.destroy_process_group()
    except Exception as error:  # noqa: BLE001
        say(error=_words(error))


def render() -> None:
    """Draw a picture through EGL with MuJoCo; without MuJoCo ask EGL for a display that needs no screen."""
    if importlib.util.find_spec("mujoco") is None:
        return _egl()
    os.environ["MUJOCO_GL"] = os.environ["PYOPENGL_PLATFORM"] = "egl"
    say(by="mujoco", step="load libEGL.so.1")
    try:
        ctypes.CDLL("libEGL.so.1")  # PyOpenGL's own words for a missing one speak of NoneType
        say(step="import mujoco")
        import mujoco

        say(step="render")
        scene = "<mujoco><worldbody><light pos='0 0 3'/><geom size='.5' rgba='1 0 0 1'/></worldbody></mujoco>"
        model = mujoco.MjModel.from_xml_string(scene)
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        with mujoco.Renderer(model, 64, 64) as renderer:
            renderer.update_scene(data)
            picture = renderer.render()
            from OpenGL import GL

            say(vendor=GL.glGetString(GL.GL_VENDOR).decode(), renderer=GL.glGetString(GL.GL_RENDERER).decode())
        red = int(picture[32, 32, 0]) > int(picture[32, 32, 1]) + 32
        say(error="" if red else f"the middle of a red ball is {picture[32, 32].tolist()}")
    except Exception as error:  # noqa: BLE001
        say(error=_words(error))
    return None


def _egl() -> None:
    say(by="eglQueryDevicesEXT", step="load libEGL.so.1")
    try:
        library = ctypes.CDLL("libEGL.so.1")
    except OSError as error:
        return say(error=str(error))
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.eglGetProcAddress.restype = pointer

    def entry(name: str, result: Any, *arguments: Any) -> Any:  # noqa: ANN401
        address = library.eglGetProcAddress(name.encode())
        return ctypes.CFUNCTYPE(result, *arguments)(address) if address else None

    say(step="eglQueryDevicesEXT")
    query = entry("eglQueryDevicesEXT", ctypes.c_uint, number, pointer, pointer)
    display_of = entry("eglGetPlatformDisplayEXT", pointer, ctypes.c_uint, pointer, pointer)
    devices, count = (pointer * 32)(), number()
    if query is None or display_of is None or not query(32, devices, ctypes.byref(count)) or not count.value:
        return say(error="eglQueryDevicesEXT finds no device")
    library.eglInitialize.argtypes = (pointer, pointer, pointer)
    library.eglQueryString.argtypes, library.eglQueryString.restype = (pointer, number), ctypes.c_char_p
    for device in devices[: count.value]:
        say(step="eglInitialize")
        display = display_of(0x313F, device, None)  # EGL_PLATFORM_DEVICE_EXT
        if library.eglInitialize(display, None, None):
            return say(error="", vendor=(library.eglQueryString(display, 0x3053) or b"").decode())  # EGL_VENDOR
    return say(error=f"eglInitialize fails with {library.eglGetError():#x} on each of {count.value} devices")


def difference(got: Any, expected: Any, most: float) -> str:  # noqa: ANN401
    """ "" where `got` lies within `most` times the largest number of `expected`, else by how much it is off."""
    got, expected = got.detach().cpu().double(), expected.detach()
    off = float((got - expected).abs().max() / expected.abs().max())
    return "" if off <= most else f"the result is wrong by {off:.2g} of its largest number"  # nan is wrong, too


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:1000]


CHECKS: dict[str, Callable[..., None]] = {"work": work, "all_reduce": all_reduce, "render": render}

if __name__ == "__main__":
    CHANNEL = os.dup(1)  # libraries may print; what they print goes to stderr, and the pipe carries facts only
    os.dup2(2, 1)
    CHECKS[sys.argv[1]](*sys.argv[2:])
