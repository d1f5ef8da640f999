"""A person's first minute in a browser: log in with the token, see the first notebook, run it."""

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

SCREENSHOTS = Path(__file__).parents[2] / "build/screenshots"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
QUIET = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]

pytestmark = pytest.mark.skipif(not BROWSER, reason="no chromium or google-chrome on PATH")


@pytest.fixture
def page():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=QUIET)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(60_000)
        yield page
        browser.close()


def photograph(page, name):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")


def test_a_person_logs_in_with_the_token_and_runs_the_first_notebook(page, launch, folders):
    workbench = launch(*folders.arguments)
    page.goto(workbench.url("/"))
    page.locator("#password_input").fill(workbench.token)
    page.locator("#login_submit").click()

    notebook = page.locator(".jp-NotebookPanel")
    expect(notebook).to_be_visible(timeout=60_000)
    expect(page.locator(".lm-TabBar-tabLabel", has_text="00_start_here.ipynb")).to_be_visible()
    expect(page.get_by_text("Python 3 (ipykernel)", exact=True)).to_be_visible(timeout=60_000)
    expect(page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]")).to_be_visible(timeout=60_000)
    photograph(page, "first-screen")
    expect(page.locator(".jp-Dialog")).to_have_count(0)

    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    prompts = page.locator(".jp-CodeCell .jp-InputPrompt")
    expect(prompts.last).to_have_text(f"[{prompts.count()}]:", timeout=120_000)
    photograph(page, "first-notebook-run")
    expect(page.locator('[data-mime-type="application/vnd.jupyter.error"]')).to_have_count(0)
