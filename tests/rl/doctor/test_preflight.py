"""`scripts/preflight`: what it gathers from a host's commands and files, and what it prints."""

import ast
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_machine import REPO, clean_environment, make_root
from host_facts import HEALTHY, NOT_RUNNING, REFUSED, host
from hypothesis import given, settings
from hypothesis import strategies as st
from test_every_rule import anything
from test_rules_start import NO_VENDOR, NOT_SELECTED

from rl.doctor.facts.host import gather_host
from rl.doctor.preflight import as_text, main, verdict
from rl.doctor.rules import RULES as INSIDE
from rl.doctor.rules.start import BY_MESSAGE, RULES, candidates, judge
from rl.doctor.schema import decode
from rl.doctor.schema.host import HostFacts

INFO = {
    "ServerVersion": "28.2.2",
    "OperatingSystem": "Ubuntu 24.04.2 LTS",
    "DockerRootDir": "/var/lib/docker",
    "DriverStatus": [["Backing Filesystem", "extfs"]],
    "Runtimes": {"runc": {}, "nvidia": {}},
    "SecurityOptions": ["name=apparmor"],
}
SMI = "NVIDIA GeForce RTX 4090, 580.95.05, 8.9"


def answer(folder: Path, command: str, *cases: tuple[str, str, str, int]) -> None:
    """A fake command: the first of `cases` (pattern of the arguments, stdout, stderr, exit code) that fits answers."""
    lines = ["#!/bin/sh", 'case "$*" in']
    for pattern, out, err, code in cases:
        said = f"printf '%s' {shlex.quote(out)}; printf '%s' {shlex.quote(err)} >&2; exit {code}"
        lines.append(f"{pattern}) {said};;")
    (folder / command).write_text("\n".join([*lines, "*) exit 1;;", "esac", ""]))
    (folder / command).chmod(0o755)


class Host:
    """A tree of files and a folder of commands: an Ubuntu with an RTX 4090, Docker, and NVIDIA's toolkit."""

    def __init__(self, folder: Path) -> None:
        self.root = make_root(folder / "root", kernel_module=True, pci_driver="nvidia", engine=None)
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.environment = {"PATH": str(self.bin), "HOME": str(folder / "home")}
        self.docker()
        answer(self.bin, "nvidia-smi", ("*compute_cap", SMI, "", 0))
        answer(
            self.bin, "nvidia-ctk", ("--version", "NVIDIA Container Toolkit CLI version 1.17.8\ncommit: f202b80", "", 0)
        )
        answer(self.bin, "nvidia-container-runtime-hook")
        answer(self.bin, "id", ("-un", "ada", "", 0), ("'-nG ada'", "ada docker", "", 0), ("-nG", "ada", "", 0))

    def docker(self, error: str = "", **info: object) -> None:
        answer(
            self.bin,
            "docker",
            ("--version", "Docker version 28.2.2, build e6534b4", "", 0),
            ("context*", "unix:///var/run/docker.sock", "", 0),
            ("compose*", "2.36.2", "", 0),
            ("info*", json.dumps({**INFO, **info} if not error else {"ServerVersion": ""}), error, 1 if error else 0),
        )

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def facts(self, **options) -> HostFacts:
        return gather_host(self.root, environment=self.environment, **options)

    def ids(self, **options) -> list[str]:
        """What is found, but for the disk and the ports, which are those of the machine that runs this test."""
        return [finding.id for finding in judge(self.facts(**options)) if finding.id not in ("disk-full", "port-taken")]


@pytest.fixture
def machine(tmp_path):
    return Host(tmp_path)


# What is gathered.


def test_a_healthy_host_is_seen_whole(machine):
    facts = machine.facts()
    docker = facts.docker
    assert (docker.path, docker.version, docker.endpoint) == (
        str(machine.bin / "docker"),
        "28.2.2",
        "unix:///var/run/docker.sock",
    )
    assert (docker.runtimes, docker.security, docker.image) == (("runc", "nvidia"), ("name=apparmor",), False)
    assert (facts.compose, facts.podman, facts.smi_error) == ("2.36.2", "", "")
    assert (facts.gpus[0].name, facts.driver, facts.gpus[0].capability) == (SMI.split(",")[0], "580.95.05", (8, 9))
    assert (facts.toolkit.version, facts.toolkit.hook, facts.toolkit.specs) == ("1.17.8", True, ())
    assert (facts.user, facts.groups, facts.groups_listed) == ("ada", ("ada",), ("ada", "docker"))
    assert facts.disk_free == pytest.approx(shutil.disk_usage(machine.root).free, rel=0.1)
    assert machine.ids() == []


def test_a_bare_machine_yields_facts_and_no_error(tmp_path):
    facts = gather_host(tmp_path, environment={"PATH": str(tmp_path)})
    assert (facts.docker.path, facts.podman, facts.toolkit.version, facts.gpus) == ("", "", "", ())
    assert judge(facts)[0].id == "engine-missing"


@pytest.mark.parametrize(("said", "found"), [(REFUSED, "engine-not-permitted"), (NOT_RUNNING, "engine-not-running")])
def test_a_daemon_that_cannot_be_asked_is_told_by_its_own_words(machine, said, found):
    machine.docker(error=said)
    assert machine.facts().docker.error == said
    assert machine.ids() == [found]


def test_errors_that_docker_info_only_lists_are_read(machine):
    machine.docker(ServerVersion="", ServerErrors=[NOT_RUNNING])
    assert machine.facts().docker.error == NOT_RUNNING


def test_a_command_that_hangs_is_ended(machine, tmp_path):
    (machine.bin / "docker").write_text(f"#!/bin/sh\necho >{tmp_path}/pid-$$\nwhile :; do :; done\n")
    assert machine.facts(limit=1).docker.error == "docker info had not ended after 1 s"
    pids = [path.name.removeprefix("pid-") for path in tmp_path.glob("pid-*")]
    assert len(pids) == 5
    assert [pid for pid in pids if Path("/proc", pid).exists()] == []


def test_a_hung_driver_is_found(machine):
    (machine.bin / "nvidia-smi").write_text("#!/bin/sh\nwhile :; do :; done\n")
    facts = machine.facts(smi_limit=0.3)
    assert facts.smi_error == "nvidia-smi --format=csv,noheader had not ended after 0 s"
    assert judge(facts)[0].id == "host-driver-failed"


def test_an_nvidia_smi_that_does_not_know_the_capability_is_asked_without_it(machine):
    refusal = 'Field "compute_cap" is not a valid field to query.'
    cases = (("*compute_cap", refusal, "", 2), ("*driver_version", "Tesla K80, 470.256.02", "", 0))
    answer(machine.bin, "nvidia-smi", *cases)
    gpu = machine.facts().gpus[0]
    assert (gpu.name, gpu.driver, gpu.capability) == ("Tesla K80", "470.256.02", ())


def test_a_driver_older_than_its_library_is_found(machine):
    answer(machine.bin, "nvidia-smi", ("*", "Failed to initialize NVML: Driver/library version mismatch\n", "", 18))
    assert machine.ids() == ["host-driver-mismatch"]


def test_a_driver_too_old_is_found(machine):
    answer(machine.bin, "nvidia-smi", ("*", "NVIDIA A100-SXM4-40GB, 535.54.03, 8.0", "", 0))
    assert machine.ids() == ["driver-too-old-for-image"]


def test_a_toolkit_that_is_not_installed_is_found(machine):
    machine.docker(Runtimes={"runc": {}})
    (machine.bin / "nvidia-ctk").unlink()
    (machine.bin / "nvidia-container-runtime-hook").unlink()
    assert machine.ids() == ["toolkit-missing"]


def test_a_docker_not_restarted_after_its_configuration_is_found(machine):
    machine.docker(Runtimes={"runc": {}})
    machine.write("etc/docker/daemon.json", '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}')
    assert machine.ids() == ["toolkit-not-configured"]


@pytest.mark.parametrize(("started", "found"), [(-3600, ["toolkit-not-configured"]), (3600, [])])
def test_a_docker_started_before_its_toolkit_came_is_found(machine, started, found):
    machine.docker(Runtimes={"runc": {}})
    pid = machine.write("var/run/docker.pid", "1234")
    os.utime(pid, (time.time() + started,) * 2)
    assert machine.ids() == found


def test_a_daemon_json_that_is_none_is_found(machine):
    machine.docker(error=NOT_RUNNING)
    machine.write("etc/docker/daemon.json", '{"runtimes": {},}')
    assert "daemon.json is not JSON" in judge(machine.facts())[0].evidence[-1]


def test_a_rootless_docker_is_judged_by_its_own_configuration(machine):
    machine.docker(SecurityOptions=["name=seccomp,profile=builtin", "name=rootless"])
    machine.write("etc/nvidia-container-runtime/config.toml", "[nvidia-container-cli]\n#no-cgroups = true\n")
    assert machine.ids() == ["rootless-not-configured"]
    machine.write("etc/nvidia-container-runtime/config.toml", "[nvidia-container-cli]\nno-cgroups = true\n")
    assert machine.ids() == []


def test_no_cgroups_for_a_docker_with_root_is_found(machine):
    machine.write("etc/nvidia-container-runtime/config.toml", "[nvidia-container-cli]\nno-cgroups = true\n")
    assert machine.ids() == ["no-cgroups-with-root"]


@pytest.mark.parametrize("folder", ["etc/cdi", "var/run/cdi"])
def test_podman_s_cdi_file_is_found(machine, folder):
    (machine.bin / "docker").unlink()
    answer(machine.bin, "podman", ("--version", "podman version 5.4.0", "", 0))
    assert machine.ids() == ["podman-cdi-missing"]
    machine.write(f"{folder}/other.yaml", "kind: vendor.com/net")
    assert machine.ids() == ["podman-cdi-missing"]
    machine.write(f"{folder}/nvidia.yaml", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n")
    assert machine.ids() == []


def test_a_docker_that_is_podman_is_taken_for_podman(machine):
    answer(machine.bin, "docker", ("--version", "podman version 5.4.0", "Emulate Docker CLI using podman.", 0))
    facts = machine.facts()
    assert (facts.docker.path, facts.podman, facts.by_podman) == ("", "5.4.0", True)


def test_the_devices_that_docker_29_has_discovered_are_read(machine):
    machine.docker(ServerVersion="29.1.0", DiscoveredDevices=[{"Source": "cdi", "ID": "nvidia.com/gpu=all"}])
    assert machine.facts().docker.devices == ("nvidia.com/gpu=all",)


def test_images_kept_by_containerd_are_looked_for_in_its_folder(machine):
    machine.docker(DriverStatus=[["driver-type", "io.containerd.snapshotter.v1"]])
    assert machine.facts().disk_folder == str(machine.root / "var/lib/containerd")
    machine.docker()
    assert machine.facts().disk_folder == str(machine.root / "var/lib/docker")


def test_selinux_and_its_boolean_are_read(machine):
    machine.docker(SecurityOptions=["name=selinux"])
    answer(machine.bin, "getenforce", ("*", "Enforcing", "", 0))
    answer(machine.bin, "getsebool", ("*", "container_use_devices --> off", "", 0))
    assert machine.ids() == ["selinux-refuses-gpu"]
    answer(machine.bin, "getsebool", ("*", "container_use_devices --> on", "", 0))
    assert machine.ids() == []


def test_a_port_that_another_program_has_is_found_and_a_free_one_is_not(machine):
    with socket.create_server(("127.0.0.1", 0)) as program, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number, other = program.getsockname()[1], free.getsockname()[1]
        free.close()
        machine.environment |= {"JUPYTER_PORT": str(number), "SSH_PORT": str(other)}
        ports = machine.facts().ports
    assert [(port.number, port.taken, port.asked) for port in ports] == [(number, True, True), (other, False, True)]


@pytest.mark.parametrize("wish", ["", "x", "0", "65536"])
def test_a_port_that_is_none_counts_as_the_default(machine, wish):
    machine.environment["JUPYTER_PORT"] = wish
    assert machine.facts().ports[0].number == 8888


@pytest.mark.parametrize(
    "info", ["", "[]", "{", '"x"', '{"Runtimes": 1, "SecurityOptions": {}, "DiscoveredDevices": [1]}']
)
def test_a_docker_that_answers_nonsense_yields_facts_and_no_error(machine, info):
    answer(machine.bin, "docker", ("--version", "Docker version 28.2.2", "", 0), ("*", info, "", 0))
    assert machine.facts().docker.version == ""


# Messages.


def test_every_message_is_long_enough_to_be_one_and_finds_its_rule():
    for rule in RULES:
        for said in re.findall("`(.*?)`", rule.symptom):
            assert len(re.findall("[a-z0-9]", said)) >= 12, said
            assert rule in candidates(f"x {re.sub('<.*?>', 'y', said)} z"), said


def test_only_the_rule_about_another_machine_has_no_message():
    assert [rule.id for rule in RULES if "`" not in rule.symptom] == ["engine-elsewhere"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NOT_SELECTED, ["host-without-gpu", "toolkit-missing", "toolkit-not-configured"]),
        (NOT_SELECTED.replace('""', '"nvidia"'), ["host-without-gpu", "toolkit-missing", "toolkit-not-configured"]),
        (f"ERROR: for workbench  {NOT_RUNNING}", ["engine-not-running"]),
        (REFUSED.replace("daemon socket", "API"), ["engine-not-permitted"]),
        (NO_VENDOR, ["host-without-gpu", "toolkit-missing", "toolkit-not-configured"]),
        (
            "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver to a"
            " newer version, or use an earlier cuda container: unknown",
            ["driver-too-old-for-image"],
        ),
        (
            "nvidia-container-cli: mount error: failed to add device rules: unable to find any existing device filters"
            " attached to the cgroup: bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted: unknown",
            ["rootless-not-configured"],
        ),
        ("Bind for 0.0.0.0:8888 failed: port is already allocated", ["port-taken"]),
        ("write /var/lib/docker/tmp/GetImageBlob1: no space left on device", ["disk-full"]),
        ("Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all", ["podman-cdi-missing"]),
        (
            "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch",
            ["host-driver-mismatch"],
        ),
        ("Segmentation fault", []),
        ("", []),
    ],
)
def test_a_message_as_it_was_seen_in_public_finds_its_rules(error, expected):
    assert [rule.id for rule in candidates(error)][: len(expected) or None] == expected


def test_a_message_broken_by_a_terminal_with_its_escapes_is_found():
    broken = 'could not sel\n  ect device dri\r\nver \\"\\" with \x1b[31mcapabilities: [[gpu]]\x1b[0m'
    assert candidates(broken.replace("\x1b[31m", ""))[0].id == "host-without-gpu"


def test_a_message_is_explained_by_what_the_host_shows(machine):
    machine.docker(folder="", DockerRootDir="/var/snap/docker/common/var-lib-docker", Runtimes={"runc": {}})
    findings = judge(machine.facts(error=NOT_SELECTED))
    assert findings[0].id == "docker-from-snap"


def test_a_message_that_nothing_on_the_host_explains_brings_what_it_can_mean():
    facts = host(error=NOT_SELECTED)
    assert verdict(facts, judge(facts)).line.startswith("Perhaps: NVIDIA's container toolkit is not installed")
    assert "nothing else that could be seen on this machine says so" in as_text(facts, judge(facts))


def test_an_unknown_message_is_said_to_be_unknown():
    facts = host(error="Segmentation fault")
    text = as_text(facts, judge(facts))
    assert verdict(facts, judge(facts)).exit_code == 1
    assert text.startswith("Nothing on this host explains the message\n")
    assert "docs/troubleshooting.md" in text


def test_what_only_a_message_tells_is_silent_without_it():
    assert [rule.id for rule in BY_MESSAGE if rule(host())] == []


# What is printed.


def preflight(machine, *arguments, **options) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys, pathlib, rl.doctor.preflight as p; sys.exit(p.main(sys.argv[2:], root=pathlib.Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", code, str(machine.root), *arguments]
    environment = {**clean_environment(), **machine.environment}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, **options)


def test_a_host_that_is_ready_exits_0_with_the_next_command(machine):
    done = preflight(machine)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Ready: NVIDIA GeForce RTX 4090, driver 580.95.05, Docker 28.2.2\n")
    assert done.stdout.endswith("\nNext: make up\n")


def test_a_host_without_gpu_is_ready_on_the_cpu(machine):
    shutil.rmtree(machine.root / "sys/bus/pci/devices")
    shutil.rmtree(machine.root / "proc/driver")
    (machine.bin / "nvidia-smi").unlink()
    machine.docker(Runtimes={"runc": {}})
    done = preflight(machine)
    assert done.returncode == 0
    assert done.stdout.startswith("Ready, on the CPU: this machine has no NVIDIA GPU; Docker 28.2.2\n")
    assert "docker-compose.cpu.yml" in done.stdout


def test_a_host_with_something_to_mend_exits_1_with_headline_evidence_and_command(machine):
    machine.docker(error=REFUSED)
    done = preflight(machine)
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "To mend: this user may not talk to the Docker daemon"
    assert lines[2:4] == ["Why [engine-not-permitted]:", f"  - {REFUSED}"]
    assert "      newgrp docker" in lines


def test_the_json_holds_schema_verdict_and_findings(machine):
    machine.docker(error=NOT_RUNNING)
    report = json.loads(preflight(machine, "--json").stdout)
    assert (report["schema"], report["verdict"]["status"], report["verdict"]["exit_code"]) == (1, "blocked", 1)
    assert (report["findings"][0]["id"], report["findings"][0]["severity"]) == ("engine-not-running", "fatal")


@pytest.mark.parametrize("by_pipe", [False, True])
def test_a_message_is_taken_from_the_command_line_or_a_pipe(machine, by_pipe):
    (machine.bin / "nvidia-ctk").unlink()
    (machine.bin / "nvidia-container-runtime-hook").unlink()
    machine.docker(Runtimes={"runc": {}})
    done = preflight(machine, "--error", "-" if by_pipe else NOT_SELECTED, input=NOT_SELECTED if by_pipe else None)
    assert done.returncode == 1
    assert done.stdout.startswith("To mend: NVIDIA's container toolkit is not installed")


def test_a_reader_that_takes_one_line_gets_the_verdict_and_no_complaint():
    command = [sys.executable, "-u", str(REPO / "scripts/preflight")]
    shell = ["bash", "-c", 'set -o pipefail; "$@" | head -n 1', "-", *command]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert (done.stderr, len(done.stdout.splitlines())) == ("", 1)


@pytest.mark.parametrize("arguments", [["--errors"], ["--error"], ["now"]])
def test_wrong_usage_exits_2(machine, arguments):
    done = preflight(machine, *arguments)
    assert (done.returncode, done.stdout) == (2, "")


def test_the_script_runs_from_anywhere_without_packages_and_leaves_nothing_behind(tmp_path):
    for folder in ("rl", "scripts"):
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(REPO / folder, tmp_path / "clone" / folder, ignore=ignored)
    command = [sys.executable, "-I", "-S", str(tmp_path / "clone/scripts/preflight"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert json.loads(done.stdout)["verdict"]["exit_code"] == done.returncode
    assert list((tmp_path / "clone").rglob("__pycache__")) == []


def test_the_script_can_be_read_by_a_python_that_is_too_old_for_the_rest():
    text = (REPO / "scripts/preflight").read_text()
    ast.parse(text, feature_version=(3, 7))
    assert text.index("sys.exit(2)") < text.index("from rl.")


# Whatever the facts are.


@settings(max_examples=200, deadline=None)
@given(anything(HostFacts), st.sampled_from([*(rule.symptom for rule in RULES), "", "�"]))
def test_no_facts_whatever_make_the_preflight_fail(data, error):
    facts = decode(HostFacts, {**json.loads(json.dumps(data)), "error": error})
    findings = judge(facts)
    assert as_text(facts, findings).startswith(verdict(facts, findings).line)
    assert verdict(facts, findings).exit_code in (0, 1)


@pytest.mark.parametrize("facts", HEALTHY.values(), ids=HEALTHY.keys())
def test_a_healthy_host_is_ready(facts):
    assert verdict(facts, judge(facts)).status == "ready"


def test_every_rule_has_an_id_of_its_own_also_beside_the_doctor_s():
    ids = [rule.id for rule in (*RULES, *INSIDE)]
    assert len(ids) == len(set(ids))
    assert [rule.id for rule in RULES if rule.cause.endswith(".") or not rule.fixes or not rule.check.__doc__] == []


def test_main_returns_its_exit_code(machine, capsys):
    assert main([], root=machine.root, environment=machine.environment) == 0
    assert capsys.readouterr().out.startswith("Ready: ")
