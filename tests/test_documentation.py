"""The documentation: it builds, its links lead somewhere, what it quotes is there, and its commands have been run.

Every command of README.md and docs/quickstart.md is run here, or by the test that ELSEWHERE names.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from workbench import WORKING_TREE

from benchmarks.learning import GATES

REPO = Path(__file__).parents[1]
PAGES = sorted([*REPO.glob("*.md"), *REPO.glob("docs/*.md")])
GENERATED = {"troubleshooting.md", "facts.md"}
TO_FOLLOW = [REPO / "docs/quickstart.md", REPO / "README.md"]

CLONE = "git clone https://github.com/OWNER/pytorch-cuda-rl && cd pytorch-cuda-rl"
SERVES = "tensorboard --logdir models/runs"
HERE = {  # command → the exit codes that are right; RUN stands for the newest run's folder
    CLONE: [0],
    "scripts/preflight": [0, 1],  # 1: it has found something to mend
    "rl train dqn --env-id CartPole-v1 --stop-at-return 195 --seed 1": [0],
    "rl eval RUN --episodes 20": [0],
    "rl resume RUN": [0],
    "make train": [0],
    'export PATH="$PWD/.venv/bin:$PATH"': [0],
    "rl doctor": [0, 1, 3],  # as `rl doctor` is documented: not 4
    SERVES: [0],
    "mkdir -p code models": [0],
}
UP = "container/test_make.py::test_make_up_prints_an_address_and_an_ssh_line_that_work_and_make_down_keeps_the_files"
SSH = "container/test_jobs.py::test_the_missions_two_ssh_lines_leave_a_job_that_outlives_the_login"
ELSEWHERE = {  # command → the test in this folder that runs it
    "make up": UP,
    "make down": UP,
    "make shell": "container/test_make.py::test_make_shell_logs_and_doctor_reach_the_running_workbench",
    "ssh rl@127.0.0.1 -p 2222": SSH,
    "nohup python train_ppo.py --epochs 1000 &": SSH,
    'docker run --gpus all -it --user "$(id -u):$(id -g)" -p 127.0.0.1:8888:8888 -p 127.0.0.1:2222:2222 '
    "-v ./code:/workspace/code -v ./models:/workspace/models pytorch-cuda-rl": (
        "container/test_first_contact.py::test_the_readmes_line_gives_a_shell_and_keeps_the_callers_files"
    ),
}


def blocks(page: Path, language: str) -> list[str]:
    """The page's fenced blocks of that language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[str]:
    """Every command of the page's bash blocks, without its comment, on one line."""
    lines = "".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    bare = [" ".join(re.sub(r"(^|\s)#.*", "", line).split()) for line in lines]
    return [command for command in bare if command]


def prose(page: Path) -> str:
    """The page without its code."""
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the page's headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone by the very line of the quickstart, with what is not committed yet, and this environment as its .venv."""
    folder = tmp_path_factory.mktemp("cloned")
    here = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{REPO}.insteadOf"}
    address = {"GIT_CONFIG_VALUE_0": CLONE.split()[2]}
    subprocess.run(["bash", "-c", CLONE], cwd=folder, env=os.environ | here | address, check=True)
    folder /= "pytorch-cuda-rl"
    subprocess.run(f"{WORKING_TREE} | tar x -C {folder}", shell=True, check=True)
    (folder / ".venv").symlink_to(sys.prefix)
    set_up = subprocess.run(["make", "--question", ".venv/ready-to-test"], cwd=folder, capture_output=True)
    assert set_up.returncode == 0, "this environment is not what requirements-dev.txt asks for: make lint renews it"
    return folder


def bash(folder: Path, script: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for name in ("RL_MODELS_DIR", "MAKELEVEL", "MAKEFLAGS"):  # set in the image, and under `make test`
        environment.pop(name, None)
    words = ["bash", "-euo", "pipefail", "-c", script]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)


def test_make_docs_builds_the_pages_without_a_warning_and_says_where_they_are(clone):
    done = bash(clone, "make docs")
    assert done.returncode == 0, done.stderr
    assert done.stdout + done.stderr == f"The pages are in {clone}/build/docs/index.html\n"
    assert {page.stem for page in clone.glob("docs/*.md")} < {page.stem for page in clone.glob("build/docs/*.html")}
    assert "step size of Adam" in (clone / "build/docs/api.html").read_text()


@pytest.mark.parametrize("page", TO_FOLLOW, ids=lambda page: page.name)
def test_every_command_of_a_page_is_run_by_a_test(page):
    unknown = set(commands(page)) - set(HERE) - set(ELSEWHERE)
    assert unknown == set(), "add it to HERE, or to ELSEWHERE with the test that runs it"


def test_the_tables_of_commands_hold_none_that_is_gone_and_no_test_that_is_not_there():
    assert {command for page in TO_FOLLOW for command in commands(page)} == set(HERE) | set(ELSEWHERE)
    for test in ELSEWHERE.values():
        file, _, name = test.partition("::")
        assert f"\ndef {name}(" in (REPO / "tests" / file).read_text()


def test_the_commands_work_one_after_another_in_a_fresh_clone(clone):
    script = []
    for command in dict.fromkeys(command for page in TO_FOLLOW for command in commands(page)):
        if command in ELSEWHERE or command == CLONE:
            continue
        line = command.replace("RUN", '"$(ls -dt models/runs/*/ | head -n 1)"')
        if command == SERVES:
            line = f"{line} >served 2>&1 & until grep http:// served; do kill -0 $!; sleep 0.2; done; kill $!"
        right = " || ".join(f"[ $code = {code} ]" for code in HERE[command])
        script += [f"echo '$ {command}'; code=0", f"{line} || code=$?" if command != SERVES else line, right]
    done = bash(clone, "\n".join(script))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "Solved in episode" in done.stdout
    assert "reached 195" in done.stdout
    assert "over 20 episodes" in done.stdout
    assert "is finished already" in done.stdout


def test_the_chinese_readme_has_the_same_code_links_and_rows():
    english, chinese = REPO / "README.md", REPO / "README.zh-CN.md"
    assert commands(chinese) == commands(english)
    assert blocks(chinese, "python") == blocks(english, "python")
    targets = [set(re.findall(r"\]\(([^)]*)\)", prose(page))) for page in (english, chinese)]
    assert targets[0] - {chinese.name} == targets[1] - {english.name}
    for what in (r"^#+ ", r"^\|", r"^\* "):
        counts = {len(re.findall(what, page.read_text(), re.MULTILINE)) for page in (english, chinese)}
        assert len(counts) == 1, what


def test_the_python_of_the_pages_trains_an_agent(clone):
    (program,) = {block for page in TO_FOLLOW for block in blocks(page, "python")}
    (clone / "from_the_page.py").write_text(program)
    done = bash(clone, "python from_the_page.py")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\d+ episodes; the agent is in models/runs/CartPole-v1-ppo", done.stdout, re.MULTILINE)


def test_the_environment_and_the_network_of_ones_own_train_as_the_page_says(tmp_path):
    page = REPO / "docs/extending.md"
    for program in blocks(page, "python"):
        (tmp_path / re.match("# (.*)", program)[1]).write_text(program)
    lines = [line.replace("RUN", "models/runs/my_env*") for line in commands(page) if line.startswith("rl ")]
    assert len(lines) == 3
    done = bash(tmp_path, "\n".join(lines))
    assert done.returncode == 0, done.stderr
    assert re.search(r"return 0\.10 ± 0\.00 over 20 episodes", done.stdout)  # ten steps: 1 - 9 × 0.1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file_and_a_heading(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", prose(page)):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in GENERATED], ids=lambda page: page.name)
def test_lines_have_at_most_120_characters_but_those_of_tables(page):
    assert [line for line in page.read_text().splitlines() if len(line) > 120 and line.lstrip()[0] != "|"] == []


@pytest.mark.parametrize(("page", "most"), [("README.md", 150), ("docs/quickstart.md", 100), ("CHANGELOG.md", 60)])
def test_a_page_for_readers_in_a_hurry_stays_short(page, most):
    assert len((REPO / page).read_text().splitlines()) <= most


def test_the_reverse_proxy_on_the_page_is_the_one_that_the_test_has():
    (on_the_page,) = blocks(REPO / "docs/security.md", "nginx")
    tested = (REPO / "tests/container/test_network.py").read_text()
    tested = tested.replace("{{", "{").replace("}}", "}").replace("{to}", "8888")
    for part in (r"map [^\n]*", r"location /team/lab/ \{[^}]*\}"):
        theirs, ours = (re.search(part, text)[0].split() for text in (tested, on_the_page))
        assert theirs == ours


def test_the_derived_image_on_the_page_is_the_one_that_the_test_builds():
    (on_the_page,) = blocks(REPO / "docs/extending.md", "dockerfile")
    built = [line for line in (REPO / "deploy/derived/Dockerfile").read_text().splitlines() if line and line[0] != "#"]
    assert on_the_page.splitlines() == built


def test_the_table_of_gates_is_that_of_the_benchmark():
    rows = [f"| {n} | {g.run.total_steps:,} | {g.bound:g} | {g.published} |" for n, g in GATES.items()]
    assert [line for line in (REPO / "docs/results.md").read_text().splitlines() if line in rows] == rows
