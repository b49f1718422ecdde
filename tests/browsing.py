"""A person who uses the web page in a real browser: Debian's Chromium, without a window."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

PATIENCE = 30_000  # milliseconds: the machine may be busy


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; the test is skipped where there is none."""
    try:
        from playwright.sync_api import expect, sync_playwright
    except ImportError:
        pytest.skip("playwright is not installed")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("there is no chromium here")
    expect.set_options(timeout=PATIENCE)
    arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=arguments, timeout=PATIENCE)
        yield launched
        launched.close()


class Person:
    """Somebody who uses the page. What the browser complains about is in `complaints`."""

    def __init__(self, browser: Any, url: str, *, model: str = "tiny", **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1100, "height": 800}, **options})
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.goto(url)
        self.expect("#model").to_have_value(model)

    def expect(self, selector: str) -> Any:
        from playwright.sync_api import expect

        return expect(self.page.locator(selector))

    def send(self, text: str) -> None:
        self.page.locator("#input").fill(text)
        self.page.locator("#input").press("Enter")

    def ask(self, text: str) -> None:
        """Sends it, and waits for the end of the answer."""
        answers = self.page.locator(".message.assistant").count()
        self.send(text)
        self.expect(".message.assistant").to_have_count(answers + 1)
        self.answered()

    def answered(self) -> None:
        self.expect("#stop").to_be_hidden()
        self.expect(".message.assistant[aria-busy=true]").to_have_count(0)

    def told(self) -> str:
        return str(self.page.locator("#live").text_content())

    def scrolls_sideways(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))
