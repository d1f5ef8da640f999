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


ERRORS = '[data-mime-type="application/vnd.jupyter.error"]'


def until_the_kernel_is_idle(page):
    expect(page.get_by_text("Python 3 (ipykernel)", exact=True)).to_be_visible(timeout=60_000)
    expect(page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]")).to_be_visible(timeout=60_000)


def run_all_cells(page):
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()


def until_the_last_cell_is_done(page):
    prompts = page.locator(".jp-CodeCell .jp-InputPrompt")
    expect(prompts.last).to_have_text(f"[{prompts.count()}]:", timeout=300_000)


def photograph(page, name):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")


def test_a_person_logs_in_with_the_token_and_runs_the_first_notebook(page, launch, folders):
    workbench = launch(*folders.arguments)
    page.goto(workbench.url("/"))
    page.locator("#password_input").fill(workbench.token)
    page.locator("#login_submit").click()

    expect(page.locator(".jp-NotebookPanel")).to_be_visible(timeout=60_000)
    expect(page.locator(".lm-TabBar-tabLabel", has_text="00_start_here.ipynb")).to_be_visible()
    until_the_kernel_is_idle(page)
    photograph(page, "first-screen")
    expect(page.locator(".jp-Dialog")).to_have_count(0)

    run_all_cells(page)
    until_the_last_cell_is_done(page)
    photograph(page, "first-notebook-run")
    expect(page.locator(ERRORS)).to_have_count(0)


@pytest.mark.timeout(600)
def test_the_curve_moves_while_the_agent_of_the_second_notebook_learns(page, launch, folders):
    workbench = launch(*folders.arguments)
    page.goto(workbench.url(f"/lab/tree/01_dqn_cartpole.ipynb?token={workbench.token}"))
    until_the_kernel_is_idle(page)
    run_all_cells(page)

    training = page.locator(".jp-CodeCell", has_text="with LiveCurve")
    curve = training.locator(".jp-OutputArea-output img")
    expect(curve).to_be_visible(timeout=120_000)
    pictures = []
    while training.locator(".jp-InputPrompt").inner_text() == "[*]:":
        if (picture := curve.get_attribute("src")) not in pictures:
            pictures.append(picture)
            if len(pictures) == 5:
                training.scroll_into_view_if_needed()
                photograph(page, "live-curve-while-training")
        page.wait_for_timeout(100)
    assert len(pictures) >= 5
    photograph(page, "live-curve-at-the-end")
    expect(training).to_contain_text("finished: average return")

    until_the_last_cell_is_done(page)
    page.keyboard.press("k")  # selects the cell above the last one, and brings it into view
    episode = page.locator(".animation img")
    expect(episode).to_be_visible()
    first = episode.get_attribute("src")
    page.get_by_title("Play", exact=True).click()
    expect(episode).not_to_have_attribute("src", first)
    photograph(page, "episode-played-back")
    expect(page.locator(ERRORS)).to_have_count(0)


def test_the_launchers_tile_opens_tensorboard_with_the_curves_of_the_runs(page, launch, folders):
    workbench = launch(*folders.arguments)
    workbench.exec("rl", "train", "ppo", "--total-steps", "20000")
    page.goto(workbench.url(f"/lab?token={workbench.token}"))
    page.get_by_role("menuitem", name="File", exact=True).click()
    page.get_by_role("menuitem", name="New Launcher").click()
    with page.expect_popup() as opened:
        page.locator(".jp-LauncherCard", has_text="TensorBoard").click()
    board = opened.value
    expect(board.get_by_text("CartPole-v1-ppo-seed0-").first).to_be_visible()
    card = board.locator("scalar-card", has_text="average_return")
    expect(card.locator("svg, canvas").first).to_be_visible()
    board.wait_for_timeout(3_000)  # until the lines are there, for whoever looks at the picture
    photograph(board, "tensorboard")
