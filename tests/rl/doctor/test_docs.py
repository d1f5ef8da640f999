"""docs/troubleshooting.md and docs/facts.md are what `make docs` writes, and hold for any rule that may come."""

import importlib.util
import json
import re

import pytest
from fake_machine import REPO
from rule_tests import TESTED

from rl.doctor.rules import RULES, Fix, judge, start
from rl.doctor.rules.rule import Rule
from rl.doctor.schema import Facts, Limits, Nvml, Probe, decode

SPEC = importlib.util.spec_from_file_location("generate", REPO / "docs/generate.py")
generate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(generate)


@pytest.mark.parametrize("name", generate.PAGES)
def test_a_page_is_what_make_docs_writes(name):
    assert (REPO / "docs" / name).read_text() == generate.PAGES[name](), f"docs/{name} is out of date: make docs"


def test_every_rule_of_the_host_is_tested_where_it_speaks_and_where_it_keeps_still():
    importlib.import_module("test_rules_start")
    tested = {rule.id: {kind for kind, _ in TESTED.get(rule.id, ())} for rule in start.RULES}
    assert {rule: kinds for rule, kinds in tested.items() if kinds != {"fires", "silent"}} == {}


def test_every_rule_names_the_files_of_its_tests():
    assert {rule for rule, files in generate._tested_by().items() if not files} == set()
    assert generate._tested_by()["toolkit-missing"] == {"test_rules_start"}


def test_every_rule_has_an_entry_and_a_line_in_the_table():
    page = generate.troubleshooting()
    for rule in (*RULES, *start.RULES):
        assert page.count(f"\n### {rule.id}\n") == 1
        assert page.count(f"\n| [{rule.id}](#{rule.id}) |") == 1
        for fix in rule.fixes:
            assert f"\n{fix.command}\n" in page


def test_every_link_within_a_page_has_its_heading():
    for page in generate.PAGES.values():
        text = page()
        anchors = {generate._anchor(title) for title in re.findall("^#+ (.*)$", text, re.MULTILINE)}
        assert set(re.findall(r"\]\(#(.*?)\)", text)) - anchors == set()


@pytest.mark.parametrize("name", generate.PAGES)
def test_every_line_of_a_table_has_as_many_cells_as_its_head(name):
    cells = 0
    for line in generate.PAGES[name]().splitlines():
        if not line.startswith("|"):
            cells = 0
            continue
        count = len(re.findall(r"(?<!\\)\|", line))
        assert count == (cells or count), line
        cells = count


def test_a_bar_does_not_break_a_table_and_angles_are_no_html():
    cell = generate._prose("a <word> | `<code> *x*` and LD_LIBRARY_PATH *y*")
    assert generate._table(("one", "two"), [(cell, "b")]).splitlines()[-1] == (
        r"| a \<word\> \| `<code> *x*` and LD_LIBRARY_PATH \*y\* | b |"
    )


def test_an_entry_has_the_commands_of_a_place_together_with_their_notes():
    def check(facts):
        """Seen by <eye>, and
        so on.
        """

    fixes = (Fix("host", "ls | wc"), Fix("kubernetes", "key: value", "in the spec"), Fix("host", "df", "then"))
    entry = generate._entry(Rule("an-id", "fatal", "the disk is <adjective>", "`no <x>`; or so.", fixes, check))
    assert entry == (
        "### an-id\n\n**The disk is \\<adjective\\>** (fatal).\n\n*Seen as:* `no <x>`; or so.\n\n"
        "*Detected by:* Seen by \\<eye\\>, and so on.\n\n"
        "On the host:\n\n```sh\nls | wc\n# then\ndf\n```\n\n"
        "In Kubernetes:\n\n```yaml\n# in the spec\nkey: value\n```\n"
    )


def test_the_example_of_the_facts_page_is_judged_as_it_says():
    example = json.loads(re.search("```json\n(.*?)```", generate.facts(), re.DOTALL)[1])
    assert judge(decode(Facts, example))[0].id == "container-without-gpu"


def test_the_meaning_of_a_field_is_the_comment_beside_it():
    assert generate.field_comments(Limits)["shm_total"] == "bytes of /dev/shm"
    assert generate.field_comments(Probe)["step"] == "the last thing it was about to do"
    assert "| `memlock` | integer or null | bytes; null: no limit |" in generate.facts()


def test_a_comment_may_go_on_in_the_lines_below(tmp_path, monkeypatch):
    source = (
        'class Some:\n    a: int = 0  # one\n    # and two\n    # more\n    b: str = "#"\n    # of c\n    c: int = 0\n'
    )
    (tmp_path / "some_facts.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    kind = importlib.import_module("some_facts").Some
    assert generate.field_comments(kind) == {"a": "one and two more", "b": "", "c": ""}


def test_every_field_of_the_facts_has_its_line():
    page = generate.facts()
    for kind in generate._reachable(Facts):
        section = page.split(f"\n## {kind.__name__}\n")[1].split("\n## ")[0]
        assert re.findall(r"^\| `(\w+)`", section, re.MULTILINE) == list(kind.__annotations__)
    assert generate._reachable(Nvml)[:2] == [Nvml, Probe]
