"""What torch.compile needs beside torch: compilers, headers, libcuda for the linker, a folder for what it compiled."""

from pathlib import PurePosixPath

from rl.doctor.rules.rule import Fix, Found, Severity, found, rule
from rl.doctor.schema import Facts


def _severity(facts: Facts) -> Severity:
    """On the CPU rl compiles only if told to, so there it is a note."""
    return "degraded" if facts.usable else "info"


@rule(
    "compile-without-compiler",
    "degraded",
    cause="torch.compile cannot work here: <missing> missing",
    symptom="Failed to find C compiler. Please specify via CC environment variable; InvalidCxxCompiler: No working C++ "
    "compiler found; fatal error: Python.h: No such file or directory.",
    fixes=(
        Fix("inside", "apt-get update && apt-get install -y g++ python3-dev", "as root"),
        Fix(
            "docker",
            "docker exec -u root <container> sh -c 'apt-get update && apt-get install -y g++ python3-dev'",
            "lost with the container: better in an image FROM this one",
        ),
    ),
)
def no_compiler(facts: Facts) -> Found | None:
    """No C compiler (Triton's, for a GPU), no g++ (for the CPU), or no Python.h. Eager code needs none of them; a note
    only where no GPU is used.
    """
    tools = facts.tools
    looked_for = {"a C compiler is": tools.compiler if facts.usable else None, "g++ is": tools.cpp_compiler}
    missing = [words for words, path in looked_for.items() if path == ""]
    missing += ["Python.h is"] if tools.python_headers is False else []
    if not missing:
        return None
    words = ", ".join(word.removesuffix(" is") for word in missing) + (" is" if len(missing) == 1 else " are")
    return found("searched in PATH, CC, CXX and Python's include folder", severity=_severity(facts), missing=words)


@rule(
    "compile-without-libcuda",
    "degraded",
    cause="torch.compile cannot work here: Triton does not find libcuda.so.1, which the driver's loader does",
    symptom="AssertionError: libcuda.so cannot found! Please make sure GPU is set up and then run /sbin/ldconfig.",
    fixes=(
        Fix("inside", "export TRITON_LIBCUDA_PATH=<folder>"),
        Fix("inside", "ldconfig", "as root; instead of the variable, for all sessions"),
    ),
)
def no_libcuda(facts: Facts) -> Found | None:
    """A GPU is used, but libcuda.so.1 is neither in the loader's cache (`ldconfig -p`) nor in LD_LIBRARY_PATH, where
    Triton looks. Nothing is said where TRITON_LIBCUDA_PATH is set.
    """
    path = facts.driver_api.path
    if facts.tools.libcuda is not False or not facts.usable or not path:
        return None
    return found(f"loaded: {path}", "`ldconfig -p` does not list it", folder=PurePosixPath(path).parent)


@rule(
    "compile-cache-unusable",
    "degraded",
    cause="torch.compile cannot use its cache <cache>: <why>",
    symptom="PermissionError: [Errno 13] Permission denied: '/.triton'; Read-only file system; failed to map segment "
    "from shared object; Stale file handle, in torch.compile.",
    fixes=(
        Fix("inside", "export TORCHINDUCTOR_CACHE_DIR=<folder>; unset TRITON_CACHE_DIR"),
        Fix("docker", "docker run --tmpfs /tmp:exec ...", "if it lies in a --tmpfs, which docker mounts noexec"),
    ),
)
def cache_unusable(facts: Facts) -> Found | None:
    """Writing to the folder of torch.compile's caches fails, or it is mounted noexec. On NFS a note only: several
    machines at once get stale handles there.
    """
    tools, severity = facts.tools, _severity(facts)
    fix, tmpfs = cache_unusable.fixes
    fixes: tuple[Fix, ...] = (fix,)
    if tools.cache_error:
        why, evidence = "it cannot be written", tools.cache_error
    elif tools.cache_noexec:
        why, evidence, fixes = "nothing in it may be executed", "mounted noexec", (fix, tmpfs)
    elif tools.cache_nfs:
        why, evidence, severity = "it lies on NFS", "several machines that compile at once get stale handles", "info"
    else:
        return None
    in_tmp = tools.cache.startswith("/tmp/")
    folder = "$PWD/.torchinductor" if in_tmp else "/tmp/torchinductor_$UID"
    return found(evidence, severity=severity, fixes=fixes, cache=tools.cache, why=why, folder=folder)


RULES = (no_compiler, no_libcuda, cache_unusable)
