"""torch.compile without a compiler, headers, libcuda or a usable cache: each state, and its nearest neighbour."""

from dataclasses import replace

import pytest
from machine_facts import TOOLS, cpu_machine, gpu_machine
from rule_tests import fires, silent

from rl.doctor.schema import Tools


def with_tools(machine=gpu_machine, **changes):
    return machine(tools=replace(TOOLS, **changes))


@fires("compile-without-compiler", "a C compiler is missing", "apt-get install -y g++ python3-dev", severity="degraded")
def test_triton_has_no_compiler():
    return with_tools(compiler="")


@fires("compile-without-compiler", "a C compiler, g++, Python.h are missing", severity="degraded")
def test_there_is_nothing_to_compile_with():
    return with_tools(compiler="", cpp_compiler="", python_headers=False)


@fires("compile-without-compiler", "Python.h is missing", severity="degraded")
def test_pythons_headers_are_missing():
    return with_tools(python_headers=False)


@fires("compile-without-compiler", "g++ is missing", severity="info")
def test_a_cpu_machine_without_a_compiler():
    return with_tools(cpu_machine, compiler="", cpp_compiler="")


@silent("compile-without-compiler")
def test_a_cpu_machine_needs_no_triton():
    return with_tools(cpu_machine, compiler="", cpp_compiler="/usr/bin/g++")


@silent("compile-without-compiler")
def test_nobody_looked_for_a_compiler():
    return gpu_machine(tools=Tools())


@silent("compile-without-compiler")
def test_all_is_there():
    return with_tools(cpp_compiler="/usr/bin/g++")


@fires("compile-without-libcuda", "TRITON_LIBCUDA_PATH=/usr/lib/x86_64-linux-gnu", "ldconfig")
def test_the_loaders_cache_does_not_know_libcuda():
    return with_tools(libcuda=False)


@silent("compile-without-libcuda")
@pytest.mark.parametrize("libcuda", [True, None])
def test_triton_finds_libcuda_or_nobody_looked(libcuda):
    return with_tools(libcuda=libcuda)


@silent("compile-without-libcuda")
def test_the_gpu_does_not_work_at_all():
    broken = replace(gpu_machine().driver_api, init=999, count=None)
    return replace(with_tools(libcuda=False), driver_api=broken, torch=cpu_machine().torch)


@silent("compile-without-libcuda")
def test_nobody_knows_where_libcuda_lies():
    return replace(with_tools(libcuda=False), driver_api=replace(gpu_machine().driver_api, path=None))


@silent("compile-without-libcuda")
def test_a_cpu_machine_has_no_libcuda():
    return with_tools(cpu_machine, libcuda=False)


@fires(
    "compile-cache-unusable", "/tmp/torchinductor_rl", "cannot be written", "Read-only", "$PWD/", severity="degraded"
)
def test_the_cache_cannot_be_written():
    return with_tools(cache_error="/tmp: Read-only file system")


@fires("compile-cache-unusable", "nothing in it may be executed", "--tmpfs /tmp:exec")
def test_the_cache_is_mounted_noexec():
    return with_tools(cache_noexec=True)


@fires("compile-cache-unusable", "NFS", "TORCHINDUCTOR_CACHE_DIR=/tmp/torchinductor_$UID", severity="info")
def test_the_cache_lies_on_nfs():
    return with_tools(cache="/home/me/.cache", cache_error=None, cache_nfs=True)


@fires("compile-cache-unusable", severity="info")
def test_the_cache_of_a_cpu_machine_cannot_be_written():
    return with_tools(cpu_machine, cache_error="/tmp: Read-only file system")


@silent("compile-cache-unusable")
@pytest.mark.parametrize("error", ["", None])
def test_the_cache_works_or_was_not_tried(error):
    return with_tools(cache_error=error)
