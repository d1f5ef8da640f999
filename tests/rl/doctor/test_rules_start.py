"""What is found on the host before the first container."""

from dataclasses import replace

import pytest
from host_facts import (
    CDI,
    DOCKER,
    HEALTHY,
    NO_TOOLKIT,
    REFUSED,
    RTX_4090,
    RUNC_ONLY,
    TOOLKIT,
    cpu_host,
    host,
    podman_host,
    with_docker,
    without_daemon,
)
from machine_facts import JETSON, NO_DRIVER, NOUVEAU, WSL
from rule_tests import fires, found_on, silent

from rl.doctor.rules.start import RULES
from rl.doctor.schema import KernelDriver, Platform
from rl.doctor.schema.host import Docker, HostFacts, HostGpu, Port

NOT_SELECTED = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'
NO_VENDOR = "docker: Error response from daemon: failed to discover GPU vendor from CDI: no known GPU vendor found"
ROOTLESS = replace(DOCKER, security=("name=seccomp,profile=builtin", "name=rootless"))
DOCKER_29 = replace(DOCKER, version="29.1.0", runtimes=RUNC_ONLY, config_runtimes=())
GTX_1080 = HostGpu("NVIDIA GeForce GTX 1080", "580.95.05", (6, 1))


def driver(version: str, capability: tuple[int, ...] = (8, 9), **changes) -> HostFacts:
    return host(gpus=(HostGpu("NVIDIA", version, capability),), **changes)


@pytest.mark.parametrize("facts", HEALTHY.values(), ids=HEALTHY.keys())
def test_no_rule_fires_on_a_healthy_host(facts):
    assert [finding.id for rule in RULES if (finding := rule(facts))] == []
    assert found_on(facts) == []


def test_no_rule_fires_on_a_host_of_which_nothing_is_known():
    assert found_on(HostFacts()) == []


# The engine.


@fires("engine-missing", "docker.io", "make lab")
def test_there_is_no_engine():
    return host(docker=Docker(path=""), compose="", podman="")


@fires("engine-missing", "run this on its host")
def test_this_is_run_in_a_container():
    return host(docker=Docker(path=""), podman="", platform=Platform(engine="docker"))


@silent("engine-missing")
def test_podman_is_an_engine_too():
    return podman_host()


@fires("engine-not-permitted", 'usermod -aG docker "$USER"', "ada wheel")
def test_the_socket_refuses_the_user():
    return without_daemon(REFUSED, groups=("ada", "wheel"), groups_listed=("ada", "wheel"))


@fires("engine-not-permitted", "only this session is older")
def test_the_user_joined_the_group_after_logging_in():
    facts = without_daemon(REFUSED, groups=("ada",), groups_listed=("ada", "docker"))
    assert "usermod" not in str(found_on(facts)[0].fixes)
    return facts


@fires("engine-not-permitted", "ls -l /var/run/docker.sock")
def test_the_socket_is_not_of_the_group_that_the_user_is_in():
    facts = without_daemon(REFUSED)
    assert "newgrp" not in str(found_on(facts)[0].fixes)
    return facts


@silent("engine-not-permitted")
def test_the_daemon_is_down():
    return without_daemon()


@fires("engine-not-running", "systemctl enable --now docker", "Is the docker daemon running?", DOCKER.endpoint)
def test_the_daemon_does_not_answer():
    return without_daemon()


@fires("engine-not-running", "had not ended after 20 s")
def test_the_daemon_hangs():
    return without_daemon("docker info had not ended after 20 s")


@fires("engine-not-running", "daemon.json is not JSON")
def test_the_daemon_cannot_read_its_configuration():
    facts = without_daemon()
    return replace(facts, docker=replace(facts.docker, config_error="/etc/docker/daemon.json is not JSON: line 3"))


@fires("engine-not-running", "docker context ls", "tcp://10.0.0.9:2375")
def test_a_daemon_elsewhere_does_not_answer():
    facts = without_daemon()
    facts = replace(facts, docker=replace(facts.docker, endpoint="tcp://10.0.0.9:2375"))
    assert "systemctl" not in str(found_on(facts)[0].fixes)
    return facts


@silent("engine-not-running")
def test_the_daemon_refuses_only_this_user():
    return without_daemon(REFUSED)


@fires("engine-elsewhere", "ssh://ada@gpu-box", severity="info")
def test_the_daemon_is_another_machine_s():
    return with_docker(endpoint="ssh://ada@gpu-box", runtimes=RUNC_ONLY)


def test_of_a_daemon_elsewhere_nothing_is_concluded_from_this_machine():
    facts = replace(cpu_host(disk_free=0), docker=replace(DOCKER, endpoint="ssh://ada@gpu-box"))
    assert [finding.id for finding in found_on(facts)] == ["engine-elsewhere"]


@silent("engine-elsewhere")
def test_the_daemon_is_the_user_s_own():
    return with_docker(endpoint="unix:///run/user/1000/docker.sock")


@fires("compose-too-old", "docker-compose-v2", "docker compose version fails")
def test_there_is_no_compose_plugin():
    return host(compose="")


@fires("compose-too-old", "2.17.3")
@pytest.mark.parametrize("version", ["2.17.3", "v2.17.3"])
def test_the_compose_plugin_does_not_know_reset(version):
    return host(compose=version)


@silent("compose-too-old")
@pytest.mark.parametrize("version", ["2.18.0", "v2.26.1-4", "5.0.1", "dev"])
def test_the_compose_plugin_is_new_enough_or_of_unknown_version(version):
    return host(compose=version)


@silent("compose-too-old")
def test_podman_needs_no_compose():
    return podman_host()


@fires("port-taken", "127.0.0.1:8888 cannot be bound", "docker run -p 127.0.0.1:8889:8888", severity="info")
def test_a_default_port_is_taken():
    return host(ports=(Port(8888, "JUPYTER_PORT", taken=True), Port(2222, "SSH_PORT")))


@fires("port-taken", "SSH_PORT asks for 2200", "127.0.0.1:2201:2222", severity="degraded")
def test_a_port_that_was_asked_for_is_taken():
    return host(ports=(Port(8888, "JUPYTER_PORT", taken=True), Port(2200, "SSH_PORT", asked=True, taken=True)))


@silent("port-taken")
def test_a_port_that_was_asked_for_is_free():
    return host(ports=(Port(8888, "JUPYTER_PORT"), Port(2200, "SSH_PORT", asked=True)))


@fires("disk-full", "14 GB are free in /var/lib/docker", "docker image prune", severity="degraded")
def test_the_disk_has_no_room_for_an_image():
    return host(disk_free=15 * 10**9 - 1)


@silent("disk-full")
def test_the_disk_has_just_enough_room():
    return host(disk_free=15 * 10**9)


@silent("disk-full")
def test_the_image_is_here_already():
    return host(disk_free=10**9, docker=replace(DOCKER, image=True))


@silent("disk-full")
@pytest.mark.parametrize("change", [{"endpoint": "tcp://10.0.0.1:2376"}, {"system": "Docker Desktop"}])
def test_the_disk_is_not_the_daemon_s(change):
    return host(disk_free=10**9, docker=replace(DOCKER, **change))


# The GPU of the host.


@fires("host-without-gpu", "make up", "docker-compose.cpu.yml", severity="info")
def test_the_host_has_no_gpu():
    return cpu_host()


@silent("host-without-gpu")
@pytest.mark.parametrize("platform", [WSL, JETSON], ids=["WSL2", "Jetson"])
def test_a_gpu_is_not_on_the_bus(platform):
    return cpu_host(platform=platform)


@pytest.mark.parametrize(
    ("pci", "expected"), [(NO_DRIVER, "no-host-driver"), (NOUVEAU, "nouveau-driver")], ids=["none", "nouveau"]
)
def test_what_the_doctor_knows_of_the_machine_itself_is_found_on_the_host_too(pci, expected):
    facts = host(pci=pci, kernel_driver=KernelDriver(), gpus=(), toolkit=NO_TOOLKIT)
    assert [finding.id for finding in found_on(facts)] == [expected]


@fires("host-driver-mismatch", "sudo reboot")
def test_the_driver_was_updated_under_its_module():
    error = "Failed to initialize NVML: Driver/library version mismatch NVML library version: 580.95"
    return host(gpus=(), smi_error=error)


@silent("host-driver-mismatch")
def test_nvidia_smi_fails_for_another_reason():
    return host(gpus=(), smi_error="No devices were found")


@fires("host-driver-failed", "No devices were found", "dmesg")
def test_nvidia_smi_lists_nothing():
    return host(gpus=(), smi_error="No devices were found")


@silent("host-driver-failed")
def test_a_mismatch_has_a_rule_of_its_own():
    return host(gpus=(), smi_error="Failed to initialize NVML: Driver/library version mismatch")


@silent("host-driver-failed")
def test_nvidia_smi_was_left_behind_on_a_machine_without_gpu():
    return cpu_host(smi_error="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")


# The toolkit.


@fires("docker-desktop-on-linux", "docker context use default")
def test_docker_desktop_on_linux():
    return with_docker(system="Docker Desktop", runtimes=RUNC_ONLY)


@silent("docker-desktop-on-linux")
def test_docker_desktop_on_windows():
    return HEALTHY["Docker Desktop in WSL2"]


@silent("docker-desktop-on-linux")
def test_docker_desktop_on_a_mac():
    return cpu_host(system="Darwin", docker=replace(DOCKER, system="Docker Desktop", runtimes=RUNC_ONLY))


@fires("docker-from-snap", "/var/snap/docker/common/var-lib-docker", "sudo snap remove docker")
def test_docker_is_a_snap():
    return with_docker(folder="/var/snap/docker/common/var-lib-docker", runtimes=RUNC_ONLY)


@fires("docker-from-snap", "/snap/bin/docker")
def test_docker_is_a_snap_whose_daemon_cannot_be_asked():
    facts = without_daemon(REFUSED)
    found = found_on(replace(facts, docker=replace(facts.docker, path="/snap/bin/docker")))
    assert [finding.id for finding in found] == ["engine-not-permitted", "docker-from-snap"]
    return with_docker(path="/snap/bin/docker", folder="", runtimes=RUNC_ONLY)


@silent("docker-from-snap")
def test_a_snap_lies_beside_the_docker_in_use():
    return with_docker(path="/snap/bin/docker", runtimes=RUNC_ONLY)


@silent("docker-from-snap")
def test_a_snap_that_knows_the_nvidia_runtime():
    return with_docker(folder="/var/snap/docker/common/var-lib-docker")


@fires("toolkit-missing", "apt-get install -y nvidia-container-toolkit", "nvidia-ctk runtime configure")
def test_the_toolkit_is_missing():
    return host(toolkit=NO_TOOLKIT, docker=replace(DOCKER, runtimes=RUNC_ONLY, config_runtimes=()))


@fires("toolkit-missing", "nvidia-container-toolkit")
def test_the_toolkit_is_missing_on_docker_29():
    return host(toolkit=NO_TOOLKIT, docker=DOCKER_29, error=NO_VENDOR)


@silent("toolkit-missing")
def test_the_daemon_knows_the_runtime_whose_toolkit_is_not_on_this_path():
    return host(toolkit=NO_TOOLKIT)


@silent("toolkit-missing")
def test_a_toolkit_older_than_nvidia_ctk_is_here():
    docker = replace(DOCKER, runtimes=RUNC_ONLY, config_runtimes=())
    return host(docker=docker, toolkit=replace(TOOLKIT, version=""))


@silent("toolkit-missing")
def test_a_machine_without_gpu_needs_no_toolkit():
    return cpu_host()


@silent("toolkit-missing")
def test_what_the_daemon_knows_is_unknown():
    return without_daemon(toolkit=NO_TOOLKIT)


@fires("toolkit-not-configured", "Docker was not restarted since", "systemctl restart docker")
def test_docker_was_not_restarted_after_its_configuration():
    return with_docker(runtimes=RUNC_ONLY)


@fires("toolkit-not-configured", "was installed after Docker was started")
def test_docker_was_not_restarted_after_the_hook_came():
    docker = replace(DOCKER, runtimes=RUNC_ONLY, config_runtimes=())
    return host(docker=docker, toolkit=replace(TOOLKIT, newer_than_docker=True))


@fires("toolkit-not-configured", "nvidia-container-runtime-hook is not", "apt-get install")
def test_only_the_base_package_of_the_toolkit_is_installed():
    docker = replace(DOCKER, runtimes=RUNC_ONLY, config_runtimes=())
    return host(docker=docker, toolkit=replace(TOOLKIT, hook=False))


@silent("toolkit-not-configured")
def test_the_hook_is_older_than_docker_s_start():
    return host(docker=replace(DOCKER, runtimes=RUNC_ONLY, config_runtimes=()))


@fires("rootless-not-configured", ".config/docker/daemon.json", "no-cgroups --in-place")
def test_a_rootless_docker_knows_nothing_of_the_toolkit():
    return host(docker=replace(ROOTLESS, runtimes=RUNC_ONLY))


@fires("rootless-not-configured", "no-cgroups is not set")
def test_a_rootless_docker_would_change_cgroups():
    return host(docker=ROOTLESS)


@silent("rootless-not-configured")
def test_a_rootless_docker_leaves_cgroups_alone():
    return HEALTHY["rootless Docker"]


@silent("rootless-not-configured")
def test_a_rootless_docker_gives_gpus_by_cdi():
    docker = replace(ROOTLESS, version="29.1.0", runtimes=RUNC_ONLY, devices=("nvidia.com/gpu=all",))
    return host(docker=docker)


@silent("rootless-not-configured")
def test_a_docker_with_root_changes_cgroups():
    return host()


@fires("cdi-devices-missing", "nvidia-cdi-refresh", "Docker is 29.1.0")
def test_docker_29_says_that_it_finds_no_vendor():
    return host(docker=DOCKER_29, error=NO_VENDOR)


@silent("cdi-devices-missing")
def test_docker_29_gives_gpus_by_the_hook():
    return host(docker=DOCKER_29)


@silent("cdi-devices-missing")
def test_docker_29_with_a_cdi_file():
    return host(docker=DOCKER_29, toolkit=replace(TOOLKIT, hook=False, specs=CDI))


@fires("cdi-devices-missing", "names nvidia.com/gpu")
def test_docker_29_has_neither_the_hook_nor_a_cdi_file():
    return host(docker=DOCKER_29, toolkit=replace(TOOLKIT, hook=False))


@silent("cdi-devices-missing")
def test_docker_28_does_not_look_for_cdi():
    return host(error=f"CDI {NOT_SELECTED}")


@fires("podman-cdi-missing", "nvidia-ctk cdi generate", "--device nvidia.com/gpu=all")
def test_podman_has_no_cdi_file():
    facts = podman_host(toolkit=TOOLKIT)
    assert "apt-get" not in str(found_on(facts)[0].fixes)
    return facts


@fires("podman-cdi-missing", "apt-get install -y nvidia-container-toolkit")
def test_podman_has_no_toolkit():
    return podman_host(toolkit=NO_TOOLKIT)


@silent("podman-cdi-missing")
def test_podman_lies_beside_docker():
    return host(podman="5.4.0")


@silent("podman-cdi-missing")
def test_podman_on_a_machine_without_gpu():
    return podman_host(toolkit=NO_TOOLKIT, pci=(), gpus=(), kernel_driver=KernelDriver())


@fires("no-cgroups-with-root", "no-cgroups=false")
def test_no_cgroups_is_set_for_a_docker_with_root():
    return host(toolkit=replace(TOOLKIT, no_cgroups=True))


@silent("no-cgroups-with-root")
def test_no_cgroups_is_set_for_a_rootless_docker():
    return HEALTHY["rootless Docker"]


@silent("no-cgroups-with-root")
def test_no_cgroups_is_not_read_by_cdi():
    docker = replace(DOCKER, version="29.1.0", devices=("nvidia.com/gpu=all",))
    return host(docker=docker, toolkit=replace(TOOLKIT, no_cgroups=True))


@fires("selinux-refuses-gpu", "container_use_devices=true", severity="degraded")
def test_selinux_confines_podman_s_containers():
    return podman_host(selinux="Enforcing", selinux_devices=False)


@fires("selinux-refuses-gpu", "label=disable")
def test_selinux_confines_a_docker_that_labels():
    return host(selinux="Enforcing", selinux_devices=False, docker=replace(DOCKER, security=("name=selinux",)))


@silent("selinux-refuses-gpu")
@pytest.mark.parametrize("mode", ["Permissive", "Disabled", ""])
def test_selinux_only_watches(mode):
    return podman_host(selinux=mode, selinux_devices=False)


@silent("selinux-refuses-gpu")
def test_selinux_confines_containers_on_a_machine_without_gpu():
    return podman_host(selinux="Enforcing", selinux_devices=False, pci=(), gpus=(), kernel_driver=KernelDriver())


# The image.


@fires("driver-too-old-for-image", "CUDA 13.0 needs driver 580", "pytorch-cuda-rl:torch2.7", "CUDA 12.6")
def test_a_driver_that_serves_the_variant_before():
    return driver("535.54.03")


@fires("driver-too-old-for-image", "nvidia-driver-580")
@pytest.mark.parametrize(("version", "capability"), [("470.256.02", (8, 9)), ("570.86.10", (12, 0))])
def test_a_driver_that_serves_no_variant_for_this_gpu(version, capability):
    facts = driver(version, capability)
    assert "pytorch-cuda-rl:" not in str(found_on(facts)[0].fixes)
    return facts


@fires("driver-too-old-for-image", "nvidia-driver-580")
def test_a_driver_on_a_processor_that_older_variants_are_not_built_for():
    facts = driver("535.54.03", platform=Platform(machine="aarch64"))
    assert "pytorch-cuda-rl:" not in str(found_on(facts)[0].fixes)
    return facts


@silent("driver-too-old-for-image")
@pytest.mark.parametrize("version", ["580.65.06", "595.71.05", "", "garbage"])
def test_a_driver_that_is_new_enough_or_unknown(version):
    return driver(version, kernel_driver=KernelDriver(loaded=True))


@fires("gpu-too-old-for-image", "GTX 1080: compute capability 6.1", "pytorch-cuda-rl:torch2.7")
def test_a_gpu_that_only_older_variants_have_kernels_for():
    return host(gpus=(GTX_1080,))


@fires("gpu-too-old-for-image", "docker-compose.cpu.yml")
def test_a_gpu_that_no_variant_has_kernels_for():
    facts = driver("470.256.02", (3, 5))
    assert "pytorch-cuda-rl:" not in str(found_on(facts)[0].fixes)
    return facts


@silent("gpu-too-old-for-image")
@pytest.mark.parametrize("capability", [(7, 5), (8, 7), (9, 0), (12, 1), (13, 0), ()])
def test_a_gpu_that_the_image_has_kernels_for_or_that_is_newer_or_unknown(capability):
    return driver("610.43.02", capability)


@silent("gpu-too-old-for-image")
def test_one_gpu_of_two_can_be_used():
    return host(gpus=(GTX_1080, RTX_4090))


# Messages that no fact of the host explains.


@fires("driver-files-in-image", "rm -f")
def test_the_message_of_an_image_with_driver_files():
    return host(
        error="nvidia-container-cli: mount error: file creation failed: /var/lib/docker/overlay2/0a1b/merged/usr/lib/"
        "x86_64-linux-gnu/libnvidia-ml.so.1: file exists: unknown."
    )


@silent("driver-files-in-image")
def test_another_mount_error():
    return host(error="nvidia-container-cli: mount error: failed to add device rules")


@fires("image-not-built", "make image")
def test_the_message_of_an_image_that_cannot_be_pulled():
    return host(
        error="docker: Error response from daemon: pull access denied for pytorch-cuda-rl, repository does not exist or"
        " may require 'docker login'"
    )


@silent("image-not-built")
def test_the_image_was_built_since():
    return host(docker=replace(DOCKER, image=True), error="pull access denied for pytorch-cuda-rl, repository …")
