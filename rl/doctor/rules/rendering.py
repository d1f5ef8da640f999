"""Rendering without a screen: by NVIDIA's EGL, or slowly by Mesa's."""

from rl.doctor.rules.rule import Fix, Found, Severity, first_line, found, rule
from rl.doctor.schema import Facts

INSTALL = Fix("inside", "apt-get install -y libegl1 libglvnd0", "as root, or in a derived image")
ON_THE_CPU = Fix("inside", "export MUJOCO_GL=osmesa", "to render on the CPU on purpose (apt-get install libosmesa6)")
GRAPHICS = (
    Fix("docker", "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics ..."),
    Fix("compose", "environment: [NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics]", "in the service"),
    Fix("podman", "podman run -e NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics ..."),
    Fix("kubernetes", "env: [{name: NVIDIA_DRIVER_CAPABILITIES, value: 'compute,utility,graphics'}]"),
)
VENDOR_FILE = "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"
WRITE_VENDOR_FILE = Fix(
    "inside",
    """echo '{"file_format_version":"1.0.0","ICD":{"library_path":"libEGL_nvidia.so.0"}}' >"""
    f"{VENDOR_FILE}",
    "as root, if the capability alone does not bring it",
)


def wanted(facts: Facts) -> bool:
    """A variable of MuJoCo or PyOpenGL asks for EGL."""
    return "egl" in {facts.environment.get(name, "").lower() for name in ("MUJOCO_GL", "PYOPENGL_PLATFORM")}


def _concerned(facts: Facts) -> bool:
    return wanted(facts) or facts.full.rendering.ended != "not run"


def _asked(facts: Facts) -> Severity | None:
    return None if wanted(facts) else "info"


def _without_nvidia(facts: Facts) -> list[str]:
    """Evidence that NVIDIA's EGL is not here; WSL2 draws by Mesa on Direct3D, and a machine without GPU by Mesa."""
    platform, tools = facts.platform, facts.tools
    if not facts.usable or platform.wsl or platform.dxg or "nvidia" in facts.full.rendering.vendor.lower():
        return []
    evidence = [str(tools.egl_library)] if tools.egl_library else []
    return evidence + (["no file of glvnd names NVIDIA's EGL"] if tools.egl_vendor is False else [])


@rule(
    "egl-without-nvidia",
    "degraded",
    cause="NVIDIA's EGL is not in this container, so rendering without a screen fails or is done by the CPU",
    symptom="Cannot initialize a headless EGL display; Cannot initialize a EGL device display; eglInitialize failed "
    "with error 0x3001 (12289); or rendering works, and is slow.",
    fixes=(*GRAPHICS, INSTALL, WRITE_VENDOR_FILE, ON_THE_CPU),
)
def egl_without_nvidia(facts: Facts) -> Found | None:
    """libEGL_nvidia.so.0 does not load, or no vendor file of glvnd names it, a GPU works, and MUJOCO_GL or
    PYOPENGL_PLATFORM asks for EGL. Whoever renders by osmesa needs none. `rl doctor --full` notes it in any case.
    """
    evidence = _without_nvidia(facts)
    if not evidence or not _concerned(facts):
        return None
    if facts.lacks_capability("graphics"):
        given = facts.environment["NVIDIA_DRIVER_CAPABILITIES"]
        evidence.append(f"NVIDIA_DRIVER_CAPABILITIES={given} leaves out graphics")
    return found(*evidence, severity=_asked(facts))


@rule(
    "render-node-shut",
    "degraded",
    cause="Mesa draws in place of NVIDIA's EGL, and may not open the GPU's render node",
    symptom="libEGL warning: failed to open /dev/dri/renderD128: Permission denied; rendering works, and is slow.",
    fixes=(
        *GRAPHICS,
        Fix("docker", "docker run --group-add $(stat -c %g /dev/dri/renderD128) ...", "if Mesa is to draw"),
        Fix("podman", "podman run --group-add keep-groups ...", "if Mesa is to draw"),
    ),
)
def render_node_shut(facts: Facts) -> Found | None:
    """A node /dev/dri/renderD… gives EACCES, EGL is asked for, a GPU works, and Mesa draws: NVIDIA's EGL, which needs
    no such node, is not here, or Mesa has answered in `rl doctor --full`.
    """
    shut = [node for node in facts.nodes.render if node.opened == "EACCES"]
    mesa = bool(_without_nvidia(facts)) or (facts.usable and "mesa" in facts.full.rendering.vendor.lower())
    if not shut or not mesa or not _concerned(facts):
        return None
    evidence = [f"/dev/dri/{node.name} has mode {node.mode}, group {node.group}" for node in shut]
    return found(*evidence, severity=_asked(facts))


@rule(
    "rendering-failed",
    "degraded",
    cause="pictures cannot be drawn without a screen",
    symptom="Cannot initialize a EGL device display; libEGL.so.1: cannot open shared object file; `rl eval --video` "
    "fails for MuJoCo.",
    fixes=(INSTALL, ON_THE_CPU),
)
def rendering_failed(facts: Facts) -> Found | None:
    """Drawing through EGL raises, hangs or crashes. A note where no variable asks for EGL, and silence where NVIDIA's
    EGL is known to be missing, which is another finding.
    """
    drawn = facts.full.rendering
    died = drawn.ended not in ("ok", "not run")
    if (not drawn.error and not died) or egl_without_nvidia(facts):
        return None
    evidence = first_line(drawn.error) if drawn.error else f"'{drawn.step}': {drawn.ended} after {drawn.seconds:.0f} s"
    return found(evidence, severity=_asked(facts))


@rule(
    "rendering-by-mesa",
    "degraded",
    cause="pictures are drawn by <renderer> in place of the GPU",
    symptom="Rendering works, and is ten times slower than it should be; nvidia-smi shows the GPU idle meanwhile.",
    fixes=(
        *GRAPHICS,
        Fix("inside", "export MUJOCO_EGL_DEVICE_ID=0", "where EGL lists several devices"),
    ),
)
def rendering_by_mesa(facts: Facts) -> Found | None:
    """A GPU works, and EGL's answer is Mesa. WSL2 draws by Mesa on Direct3D, which is right there; its causes
    that are known are other findings. A note where no variable asks for EGL.
    """
    drawn, platform = facts.full.rendering, facts.platform
    mesa = drawn.error == "" and any("mesa" in word.lower() for word in (drawn.vendor, drawn.renderer))
    if not mesa or not facts.usable or platform.wsl or platform.dxg:
        return None
    if egl_without_nvidia(facts) or render_node_shut(facts):
        return None
    return found(f"{drawn.vendor}: {drawn.renderer}", severity=_asked(facts), renderer=drawn.renderer or drawn.vendor)


RULES = (egl_without_nvidia, render_node_shut, rendering_failed, rendering_by_mesa)
