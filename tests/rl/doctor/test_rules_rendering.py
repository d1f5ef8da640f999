"""Rendering without a screen: NVIDIA's EGL that is missing, Mesa in its place, and nothing where nobody asks."""

from dataclasses import replace

import pytest
from machine_facts import NO_FILE, TOOLS, WSL, cpu_machine, gpu_machine, nodes
from rule_tests import fires, silent

from rl.doctor.schema import Full, Node, Rendering

MISSING = replace(TOOLS, egl_library=f"libEGL_nvidia.so.0: {NO_FILE}", egl_vendor=False)
SHUT = replace(nodes("nvidiactl", "nvidia-uvm", "nvidia0"), render=(Node("renderD128", "0660", 109, 226, "EACCES"),))
MESA = Rendering(ended="ok", error="", by="mujoco", vendor="Mesa/X.org", renderer="llvmpipe (LLVM 15.0.6, 256 bits)")
NVIDIA = Rendering(ended="ok", error="", by="mujoco", vendor="NVIDIA Corporation", renderer="NVIDIA H200/PCIe/SSE2")
NO_LIBRARY = Rendering(ended="ok", error=f"libEGL.so.1: {NO_FILE}")


def wanting(name: str = "MUJOCO_GL", machine=gpu_machine, **changes):
    environment = {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility", name: "egl"}
    return machine(**{"environment": environment, "tools": MISSING} | changes)


def drawn(rendering: Rendering, machine=gpu_machine, **changes):
    return machine(full=Full(rendering=rendering), **changes)


@fires(
    "egl-without-nvidia", "libEGL_nvidia.so.0", "leaves out graphics", "compute,utility,graphics", severity="degraded"
)
@pytest.mark.parametrize("name", ["MUJOCO_GL", "PYOPENGL_PLATFORM"])
def test_egl_is_asked_for_and_nvidias_was_not_given(name):
    return wanting(name)


@fires("egl-without-nvidia", "no file of glvnd", "10_nvidia.json", "libegl1")
def test_the_library_is_here_and_the_file_that_names_it_is_not():
    return wanting(tools=replace(TOOLS, egl_vendor=False))


@fires("egl-without-nvidia", severity="info")
def test_it_is_a_note_where_only_the_full_check_asks():
    return drawn(MESA, tools=MISSING)


@silent("egl-without-nvidia")
def test_whoever_renders_by_osmesa_needs_no_egl():
    return gpu_machine(environment={"MUJOCO_GL": "osmesa"}, tools=MISSING)


@silent("egl-without-nvidia")
def test_nobody_asks_for_egl():
    return gpu_machine(tools=MISSING)


@silent("egl-without-nvidia")
def test_nvidias_egl_is_here():
    return wanting(tools=TOOLS)


@silent("egl-without-nvidia")
def test_what_was_not_looked_for_is_not_missing():
    return wanting(tools=replace(TOOLS, egl_library=None, egl_vendor=None))


@silent("egl-without-nvidia")
def test_nvidia_has_drawn_wherever_its_files_lie():
    return wanting(full=Full(rendering=NVIDIA))


@silent("egl-without-nvidia")
def test_a_machine_without_gpu_draws_by_mesa():
    return wanting(machine=cpu_machine)


@silent("egl-without-nvidia")
def test_wsl_draws_by_mesa_on_direct3d():
    return wanting(platform=WSL)


@fires("render-node-shut", "/dev/dri/renderD128 has mode 0660, group 109", "--group-add", severity="degraded")
def test_mesa_would_draw_and_may_not_open_the_node():
    return wanting(nodes=SHUT)


@fires("render-node-shut", severity="info")
def test_mesa_has_drawn_without_the_node():
    return drawn(MESA, nodes=SHUT)


@silent("render-node-shut")
def test_nvidias_egl_needs_no_render_node():
    return wanting(nodes=SHUT, tools=TOOLS)


@silent("render-node-shut")
def test_a_render_node_that_nobody_asks_for():
    return gpu_machine(nodes=SHUT, tools=MISSING)


@silent("render-node-shut")
def test_a_render_node_that_opens():
    return wanting(nodes=replace(SHUT, render=(Node("renderD128", "0666", 109, 226, "ok"),)))


@silent("render-node-shut")
def test_a_machine_without_gpu_that_draws_by_mesa():
    return drawn(MESA, cpu_machine, nodes=replace(nodes(), render=SHUT.render))


@fires("rendering-failed", "libEGL.so.1", "libegl1", severity="info")
@pytest.mark.parametrize("machine", [gpu_machine, cpu_machine])
def test_no_library_draws_at_all(machine):
    return drawn(NO_LIBRARY, machine)


@fires("rendering-failed", severity="degraded")
def test_no_library_draws_although_a_variable_asks():
    return wanting(tools=TOOLS, full=Full(rendering=NO_LIBRARY))


@fires("rendering-failed", "'render': signal SIGSEGV")
def test_a_library_that_crashes_while_it_draws():
    return drawn(Rendering(ended="signal SIGSEGV", step="render"))


@silent("rendering-failed")
def test_a_failure_whose_cause_is_known():
    return drawn(NO_LIBRARY, tools=MISSING)


@silent("rendering-failed")
@pytest.mark.parametrize("rendering", [NVIDIA, MESA, Rendering()], ids=["NVIDIA", "Mesa", "not tried"])
def test_a_picture_that_was_drawn_or_not_tried(rendering):
    return drawn(rendering)


@fires("rendering-by-mesa", "llvmpipe", severity="info")
def test_mesa_draws_beside_a_gpu():
    return drawn(MESA)


@fires("rendering-by-mesa", severity="degraded")
def test_mesa_draws_beside_a_gpu_although_a_variable_asks():
    return wanting(tools=TOOLS, full=Full(rendering=MESA))


@silent("rendering-by-mesa")
@pytest.mark.parametrize("rendering", [NVIDIA, NO_LIBRARY, Rendering()], ids=["NVIDIA", "nobody", "not tried"])
def test_somebody_else_or_nobody_draws(rendering):
    return drawn(rendering)


@silent("rendering-by-mesa")
def test_mesa_draws_where_there_is_no_gpu():
    return drawn(MESA, cpu_machine)


@silent("rendering-by-mesa")
def test_mesa_draws_on_wsl():
    return drawn(MESA, platform=WSL)


@silent("rendering-by-mesa")
def test_mesa_draws_for_a_known_reason():
    return drawn(MESA, nodes=SHUT)
