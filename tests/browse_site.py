"""Opens every page of the built site in Chromium and prints, as JSON, what is wrong with it.

.venvs/site/bin/python tests/browse_site.py build/site [--all] [--screenshots FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import axe_playwright_python
from playwright.async_api import Page, Route, async_playwright

LAPTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
#: Tabs that are open at a time.
TABS = 2
#: Where the pages seem to be: no server is asked, so no request depends on the machine.
BASE = "http://localhost"
#: A page of each kind: plots, drawings, tables, code, generated API.
KINDS = ("index", "benchmarks", "how-it-works", "comparison", "get-started", "api/measure")
AXE = Path(axe_playwright_python.__file__).parent / "axe.min.js"
_OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
#: Clicks one of the theme's three inputs: light, dark, or the system's scheme. A change of the
#: system's scheme would reach the open page with its next frame, and on a busy machine Chromium can
#: stop drawing frames of a tab.
_SWITCH = """(scheme) =>
    document.querySelector(`[data-md-color-media="(prefers-color-scheme${scheme})"]`).click()"""
_IS = """(scheme) => {
    const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).map(Number);
    return (r + g + b > 384) === (scheme === "light");
}"""
#: The theme's copy button takes a block's inner text while the block has this attribute.
_COPIED = """() => Array.from(document.querySelectorAll("pre > code")).map((code) => {
    code.setAttribute("data-md-copying", "");
    const text = code.innerText;
    code.removeAttribute("data-md-copying");
    return text;
}).filter((text) => !text.trim() || /^\\s*\\$ /m.test(text))"""
#: Bars that are cut off look equally long.
_CUT = """() => Array.from(document.querySelectorAll('img[src*="loaders"]'))
    .filter((img) => img.offsetParent && img.clientWidth > img.parentElement.clientWidth)
    .map((img) => img.getAttribute("src"))"""
#: Frames of wide tables have shadows at their edges, and their tables let these through.
_HIDDEN = """() => Array.from(document.querySelectorAll(".md-typeset__scrollwrap"))
    .filter((frame) => frame.scrollWidth > frame.clientWidth)
    .filter((frame) => !getComputedStyle(frame).backgroundImage.includes("gradient")
        || getComputedStyle(frame.querySelector("table")).backgroundColor !== "rgba(0, 0, 0, 0)")
    .map((frame) => frame.innerText.slice(0, 80))"""
#: What all pages share is looked at on the first, and of a long table the first rows.
_AXE = """async ([part, rules]) => {
    const only = rules ? {runOnly: {type: "rule", values: rules}} : {};
    const context = {include: [[part]], exclude: [["tbody tr:nth-child(n+5)"]]};
    const found = await axe.run(context, {...only, preload: false, resultTypes: ["violations"]});
    return found.violations
        .filter(({impact}) => impact === "serious" || impact === "critical")
        .map(({id, help, nodes}) => `${id}: ${help}: ${nodes[0].html.slice(0, 200)}`);
}"""


async def examine(
    tab: Page, folder: Path, name: str, schemes: tuple[str, str], axe: bool, shots: Path | None
) -> list[str]:
    part = "html" if name == "index.html" else "article"
    wrong: list[str] = []

    async def answer(route: Route) -> None:
        url = route.request.url
        path = folder / unquote(urlsplit(url).path).lstrip("/")
        path = path / "index.html" if path.is_dir() else path
        if url.startswith(f"{BASE}/") and path.is_file():
            await route.fulfill(path=path)
        else:
            wrong.append(f"not there, or from elsewhere: {url}")
            await route.abort()

    await tab.route("**/*", answer)
    tab.on("console", lambda line: line.type == "error" and wrong.append(f"console: {line.text}"))
    tab.on("pageerror", lambda error: wrong.append(f"script: {error}"))
    await tab.set_viewport_size(LAPTOP)
    await tab.emulate_media(color_scheme=schemes[0])  # type: ignore[arg-type]
    await tab.goto(f"{BASE}/{name}")
    # Colours on their way from one scheme to the other are neither's.
    await tab.add_style_tag(content="* { transition: none !important; }")
    for scheme in schemes:
        await tab.set_viewport_size(LAPTOP)
        if scheme != schemes[0]:
            await tab.evaluate(_SWITCH, f": {scheme}")
        if not await tab.evaluate(_IS, scheme):
            wrong.append(f"{scheme}: the page's background is not")
        if axe:
            rules = None if scheme == "light" else ["color-contrast"]
            if scheme == schemes[0]:
                await tab.add_script_tag(path=AXE)
            wrong += [f"{scheme}: {line}" for line in await tab.evaluate(_AXE, [part, rules])]
        for size in (LAPTOP, PHONE):
            await tab.set_viewport_size(size)
            wrong += [f"{size['width']} px: {cut} is cut" for cut in await tab.evaluate(_CUT)]
            wrong += [f"does not show that it scrolls: {x}" for x in await tab.evaluate(_HIDDEN)]
            if (beyond := await tab.evaluate(_OVERFLOW)) > 0:
                wrong.append(f"{scheme}: {beyond} px wider than a window of {size['width']}")
            if shots is not None:
                picture = f"{name.replace('/', '_')}-{size['width']}-{scheme}.png"
                await tab.screenshot(path=shots / picture, full_page=True)
    wrong += [f"copied with its prompt: {text}" for text in await tab.evaluate(_COPIED)]
    return wrong


async def browse(
    folder: Path, browser: str, everything: bool, screenshots: Path | None
) -> dict[str, list[str]]:
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html"))
    found: dict[str, list[str]] = {}
    queue = enumerate(name for name in names if name != "404.html")
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(
            executable_path=browser, args=["--no-sandbox"], timeout=0
        )

        async def work() -> None:
            for number, name in queue:
                schemes = ("light", "dark") if number % 2 else ("dark", "light")
                axe = (
                    everything or (name.removesuffix("index.html").rstrip("/") or "index") in KINDS
                )
                tab = await chromium.new_page()
                tab.set_default_timeout(0)  # a busy or cold machine is no fault of a page
                found[name] = await examine(tab, folder, name, schemes, axe, screenshots)
                await tab.close()

        await asyncio.gather(*(work() for _ in range(TABS)))
        await chromium.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true", help="axe-core on every page")
    parser.add_argument("--screenshots", type=Path)
    options = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        sys.exit("there is no chromium: apt-get install chromium")
    if options.screenshots:
        options.screenshots.mkdir(parents=True, exist_ok=True)
    found = asyncio.run(browse(options.folder, browser, options.all, options.screenshots))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
