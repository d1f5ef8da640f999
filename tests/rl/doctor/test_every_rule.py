"""What holds for all rules: silence where all is well, and on whatever somebody writes into a file of facts."""

import importlib
import json
import re
from collections import Counter
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from healthy_machines import HEALTHY
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_facts import cpu_machine, gpu_machine
from rule_tests import TESTED

from rl.doctor.report import as_json, as_text, verdict
from rl.doctor.rules import RULES, judge, start
from rl.doctor.schema import Facts, decode


@pytest.mark.parametrize("facts", HEALTHY.values(), ids=HEALTHY.keys())
def test_no_rule_fires_on_a_healthy_machine(facts):
    # Every single rule, also those that `judge` would not have asked.
    assert [finding for rule in RULES if (finding := rule(facts))] == []
    assert judge(facts) == []
    assert verdict(facts, judge(facts)).status == "ready"


def test_every_rule_has_an_id_of_its_own_and_says_how_it_is_detected():
    assert [name for name, count in Counter(rule.id for rule in RULES).items() if count > 1] == []
    assert [rule.id for rule in RULES if not (rule.check.__doc__ and rule.symptom and rule.cause)] == []
    assert [rule.id for rule in RULES if rule.cause.endswith(".") or (rule.severity != "info" and not rule.fixes)] == []


def test_every_rule_has_a_test_that_it_fires_and_one_that_it_is_silent():
    for path in sorted(Path(__file__).parent.glob("test_rules_*.py")):
        importlib.import_module(path.stem)
    lacking = [
        f"{rule.id}: {kind}" for rule in RULES for kind in ("fires", "silent") if kind not in dict(TESTED[rule.id])
    ]
    assert lacking == []


def test_the_variants_that_findings_name_are_those_of_the_bake_file():
    bake = (Path(__file__).parents[3] / "docker-bake.hcl").read_text()
    tags = set(re.findall(r'named\("(torch[\d.]+)"\)', bake))
    assert tags == {variant.tag for variant in start.VARIANTS}
    named = {
        tag for rule in RULES for fix in rule.fixes for tag in re.findall(r"pytorch-cuda-rl:(torch[\d.]+)", fix.command)
    }
    assert named <= tags
    arm = {variant.tag for variant in start.VARIANTS if "aarch64" in variant.machines}
    assert arm == {"torch2.13"}
    assert bake.count("linux/arm64") == 1


def anything(hint: Any) -> st.SearchStrategy[Any]:
    """JSON of the right type, its extremes preferred; now and then of a wrong one."""
    if is_dataclass(hint):
        return st.fixed_dictionaries(
            {}, optional={f.name: anything(get_type_hints(hint)[f.name]) for f in fields(hint)}
        )
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple:
        return st.lists(anything(arguments[0]), max_size=3)
    if origin is dict:
        names = st.sampled_from(sorted(SPOKEN)) | st.text(max_size=3)
        return st.dictionaries(names, anything(arguments[1]), max_size=4)
    if arguments:  # a union with None
        return st.none() | anything(arguments[0])
    plain = {
        str: st.sampled_from(WORDS) | st.text(max_size=8),
        int: st.sampled_from((0, 1, -1, 2, 34, 100, 209, 802, 999, 12040, 13000, 10**30)) | st.integers(),
        float: st.floats(),
        bool: st.booleans(),
    }
    return plain[hint] | st.sampled_from((None, "", -1, [], {}))


SPOKEN = [
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "LD_LIBRARY_PATH",
    "GPU_CHECK",
    "CUDA_VERSION",
    "CUDA_LAUNCH_BLOCKING",
    "PATH",
    "MUJOCO_GL",
    "OMP_NUM_THREADS",
]
WORDS = [
    "ok",
    "timeout",
    "signal SIGSEGV",
    "EPERM",
    "EACCES",
    "ENXIO",
    "EIO",
    "0660",
    "u:r:container_t:s0",
    "apptainer",
    "lxc",
    "linuxkit",
    "nvmap",
    "0x1b80",
    "0x2b85",
    "590.44.01",
    "libcuda.so.570.26",
    "docker",
    "podman",
    "kubernetes",
    "nvidia0",
    "nvidiactl",
    "nvidia-uvm",
    "nvidia",
    "nouveau",
    "0x10de",
    "580.95.05",
    "535",
    "13.0",
    "2.13.0",
    "all",
    "void",
    "0,1",
    "-1",
    "GPU-1",
    "MIG-1",
    "sm_90 compute_90",
    "sm_100a sm_101 compute_100f",
    "2.12.0 in /opt/venv",
    "pynvml 11.5",
    "python3",
    "strict",
    "egl",
    "/usr/local/cuda/lib64/stubs",
    "compat",
    "�",
]


@settings(max_examples=400, deadline=None)
@given(anything(Facts))
def test_no_facts_whatever_make_the_doctor_fail_or_give_it_two_headlines(data):
    facts = decode(Facts, json.loads(json.dumps(data)))
    report = as_json(facts)
    json.dumps(report)
    text = as_text(facts)
    assert text.splitlines()[0].strip() == report["verdict"]["line"].splitlines()[0].strip()
    assert text.count("\nWhy [") <= 1
    assert report["verdict"]["exit_code"] in (0, 1, 3)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_losing_any_part_of_the_facts_never_makes_the_doctor_fail(data):
    machine = data.draw(st.sampled_from([gpu_machine(), cpu_machine(), *HEALTHY.values()]))
    facts = json.loads(json.dumps(asdict(machine)))
    for part in data.draw(st.lists(st.sampled_from(sorted(facts)), max_size=6)):
        if isinstance(facts[part], dict) and facts[part] and data.draw(st.booleans()):
            facts[part].pop(data.draw(st.sampled_from(sorted(facts[part]))), None)
        else:
            facts.pop(part, None)
            facts.setdefault(part, None)
    as_text(decode(Facts, facts))


def test_facts_survive_their_file():
    facts = replace(gpu_machine(), init_environment={"A": "b"})
    assert decode(Facts, json.loads(json.dumps(asdict(facts)))) == facts
