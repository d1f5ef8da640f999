"""What the doctor says: silence on healthy machines, and the wording of the others."""

from dataclasses import replace

from machine_facts import (
    NO_FILE,
    QUICK,
    commands,
    cpu_machine,
    gpu_machine,
    without_gpu,
)

from rl.doctor.report import as_text, summary
from rl.doctor.schema import DriverApi, TorchRun


def test_a_plain_report_begins_with_its_verdict_and_has_evidence_and_command():
    lines = as_text(without_gpu()).splitlines()
    assert lines[0].startswith("No usable GPU: the host has a GPU and its driver, but this container")
    assert "  - there is no /dev/nvidia* in here" in lines
    assert "      docker run --gpus all ..." in lines


def test_a_healthy_report_says_what_torch_cuda_and_nvml_say():
    text = as_text(gpu_machine(gpus=2))
    assert text.splitlines() == [
        "GPU ready: 2 x NVIDIA H200, driver 580.95.05, torch 2.13.0",
        "",
        "  torch   2.13.0, built for CUDA 13.0",
        "  CUDA    available: yes; GPUs: 2; current device: cuda:0; driver 580.95.05, serves CUDA 13.0",
        "  NVML    ok",
        "  GPU 0   NVIDIA H200, 141 GiB",
        "  GPU 1   NVIDIA H200, 141 GiB",
    ]


def test_a_quick_report_does_not_claim_what_it_has_not_asked():
    assert as_text(gpu_machine(torch=QUICK)).splitlines() == [
        "GPU ready: NVIDIA H200, driver 580.95.05, torch 2.13.0 (not tried)",
        "",
        "  torch   2.13.0, built for CUDA 13.0 (not imported)",
        "  CUDA    available: yes; GPUs: 1; current device: not asked; driver 580.95.05, serves CUDA 13.0",
        "  NVML    ok",
        "  GPU 0   NVIDIA H200, 141 GiB",
    ]


def test_a_cpu_report_is_four_lines():
    assert as_text(cpu_machine()).splitlines() == [
        "CPU only: no NVIDIA GPU is visible on this machine; training runs on the CPU",
        "",
        "  torch   2.13.0+cpu, built without CUDA",
        "  CUDA    available: no; GPUs: 0; current device: cpu",
        f"  NVML    libnvidia-ml.so.1: {NO_FILE}",
    ]


def test_a_report_of_two_causes_tells_the_second_as_also():
    broken = TorchRun(ended="ok", step="import torch", error="ImportError: torn")
    lines = as_text(without_gpu(torch=broken)).splitlines()
    assert lines[2] == "  torch   2.13.0, built for CUDA 13.0 (fails)"
    assert [line for line in lines if line.startswith(("Why", "Also"))] == [
        "Why [container-without-gpu]:",
        "Also [torch-broken]: torch is installed but broken: 'import torch' fails",
    ]


def test_a_container_of_unknown_engine_is_shown_the_command_of_each():
    text = commands(without_gpu("container"))
    assert "docker run" in text
    assert "podman run" in text
    assert "runtimeClassName" in text
    assert "apptainer" not in text


def test_a_gpu_hidden_on_purpose_comes_with_the_way_back():
    hidden = DriverApi(ended="ok", version=13000, init=100)
    facts = gpu_machine(environment={"CUDA_VISIBLE_DEVICES": ""}, driver_api=hidden, torch=QUICK)
    assert as_text(facts).splitlines()[-4:] == [
        "Why [gpu-hidden]:",
        "  - CUDA_VISIBLE_DEVICES is ''",
        "  In here:",
        "      unset CUDA_VISIBLE_DEVICES",
    ]


def test_a_gpu_that_cuda_visible_devices_leaves_out_is_not_counted():
    one = replace(gpu_machine().torch, names=("NVIDIA A2",))
    facts = gpu_machine(gpus=2, torch=one, environment={"CUDA_VISIBLE_DEVICES": "1"})
    assert as_text(facts).splitlines()[0] == "GPU ready: NVIDIA A2, driver 580.95.05, torch 2.13.0"
    assert (summary(facts)["gpu_count"], summary(facts)["gpu_names"]) == (1, ["NVIDIA A2"])
