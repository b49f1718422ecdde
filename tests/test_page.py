"""The web page at /: how it is delivered, and what it does in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from browsing import Person, chromium
from gated_steps import Gate
from localinfer import LLM
from localinfer.server.page import FOLDER, Page, wants_page
from localinfer.server.settings import ServerSettings
from scripted_model import write_scripted_model
from served_app import Served, served
from test_server_tools import CALLING, TEMPLATE, TOOLS

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
KEY = "a-long-secret"
SMALL = 105_000  # bytes of all files together
HOSTILE = [
    "# <b>Bold</b>\n\n",
    "<script>document.title='taken'</script>",
    "<img src=x onerror=",
    "document.title='taken'>\n\n",
    "[one](javascript:document.title='taken') ",
    "[two](JAVA",
    "script:alert(1)) ",
    "[three](data:text/html,<script>1</script>) ",
    "<javascript:alert(1)> ",
    "![four](https://evil.example/spy.png) ",
    "[five](/v1/models) ",
    "[six](//evil.example) ",
    '[seven](https://good.example/"onclick="x) ',
    "\x1b[31mred",
    "\x07 \u202egnp.exe\n\n",
    "```html\n",
    "</code></pre><iframe src=x>\n```",
]


def scripted(folder: Path, **more: Any) -> LLM:
    llm = LLM(write_scripted_model(folder / "tiny.gguf", **more), context=4096, max_sequences=4, threads=1)
    llm.name = "tiny"
    return llm


class Watched(Served):
    """With the gate that the steps of its model pass."""

    gate: Gate


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    llm = scripted(tmp_path_factory.mktemp("page"), template=TEMPLATE, answer=["Hello", ",", " **wide**", " 🌍", "!"])
    gate = Gate(llm)
    with served(llm, guard=True) as found:
        watched = Watched(*found)
        watched.gate = gate
        yield watched


# --- delivery ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (BROWSER, True),
        ("text/html", True),
        ("TEXT/HTML; q=0.5, */*;q=0.1", True),
        ("application/json, text/html;q=0.9", False),
        ("text/html;q=0", False),
        ("text/html;q=x", False),
        ("*/*", False),
        ("application/json", False),
        ("", False),
    ],
)
def test_the_page_is_for_browsers(accept: str, wanted: bool) -> None:
    assert wants_page(accept) == wanted


def test_the_root_is_the_page_or_json(server: Served) -> None:
    page = httpx.get(server.url, headers={"accept": BROWSER})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.text == (FOLDER / "index.html").read_text(encoding="utf-8")
    welcome = httpx.get(server.url)
    assert welcome.json()["name"] == "localinfer"
    assert page.headers["vary"] == welcome.headers["vary"] == "accept"
    for accept, kind in ((BROWSER, "text/html; charset=utf-8"), ("*/*", "application/json")):
        head = httpx.head(server.url, headers={"accept": accept})
        assert (head.status_code, head.content, head.headers["content-type"]) == (200, b"", kind)


def test_every_file_is_sent_with_its_type_and_a_strict_policy(server: Served) -> None:
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
    for path in FOLDER.iterdir():
        response = httpx.get(f"{server.url}/page/{path.name}")
        assert response.content == path.read_bytes()
        assert response.headers["content-type"] == f"{kinds[path.suffix]}; charset=utf-8"
        rules = dict(rule.strip().split(" ", 1) for rule in response.headers["content-security-policy"].split(";"))
        assert rules == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "connect-src": "'self'",
            "img-src": "'self' data:",
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'none'",
            "require-trusted-types-for": "'script'",
            "trusted-types": "'none'",
        }
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-cache"


def test_what_a_browser_has_is_not_sent_again(server: Served) -> None:
    url = f"{server.url}/page/main.js"
    etag = httpx.get(url).headers["etag"]
    again = httpx.get(url, headers={"if-none-match": f'W/"x", {etag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert httpx.get(url, headers={"if-none-match": '"other"'}).status_code == 200


def test_nothing_else_is_sent(server: Served) -> None:
    for name in ("", "none.js", "..%2fpage.py", "%2e%2e/page.py", "../page.py", "page/style.css"):
        assert httpx.get(f"{server.url}/page/{name}").status_code == 404
    assert httpx.post(f"{server.url}/page/main.js").status_code == 405


def test_the_files_need_no_key_and_the_api_does(tmp_path: Path) -> None:
    with served(scripted(tmp_path), ServerSettings(api_keys=(KEY,)), guard=True) as found:
        client = httpx.Client(base_url=found.url)
        assert client.get("/", headers={"accept": BROWSER}).status_code == 200
        for name in Page().names:
            assert client.get(f"/page/{name}").status_code == 200
        assert client.get("/").status_code == 401
        for path in ("/v1/models", "/openapi.json", "/pages", "/page"):
            assert client.get(path, headers={"accept": BROWSER}).status_code == 401
        for path in ("/", "/page/main.js"):
            assert client.post(path, headers={"accept": BROWSER}).status_code == 401
        assert client.get("/v1/models", headers={"authorization": f"Bearer {KEY}"}).status_code == 200
        client.close()


def test_the_files_are_small_and_refer_to_each_other() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert sum(len(text.encode()) for text in texts.values()) < SMALL
    assert set(texts) == set(Page().names)
    referred = set(re.findall(r'(?:src|href)="page/([^"]+)"', texts["index.html"])) | {"index.html"}
    for text in texts.values():
        referred |= set(re.findall(r'from "\./([^"]+)"', text))
    assert referred == set(texts)


def test_the_files_load_nothing_from_elsewhere_and_make_no_markup() -> None:
    dangerous = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|srcdoc|"
        r"createContextualFragment|setHTML"
    )
    for path in FOLDER.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")  # a name, no address
        assert not re.search(r"https?://", text), path.name
        assert not re.search(dangerous, text), path.name
    index = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script>|<style|\son\w+=|\sstyle=", index), "the policy would not let it run"
    ids = set(re.findall(r'\bid="([^"]+)"', index))
    assert set(re.findall(r'\$\("([^"]+)"\)', (FOLDER / "main.js").read_text(encoding="utf-8"))) <= ids


# --- in a browser ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as launched:
        yield launched


@pytest.fixture
def person(browser: Any, server: Watched) -> Iterator[Person]:
    found = Person(browser, server.url)
    yield found
    server.gate.open_gate()
    found.context.close()
    assert not found.complaints


def test_an_answer_comes_piece_by_piece(person: Person, server: Watched) -> None:
    server.gate.close_gate(3)
    person.send("hello")
    person.expect(".user .bubble").to_have_text("hello")
    answer = ".message.assistant .markdown"
    person.expect(answer).to_contain_text("Hello,")
    person.expect(".message.assistant").to_have_attribute("aria-busy", "true")
    person.expect("#stop").to_be_visible()
    server.gate.open_gate()
    person.expect(answer).to_have_text("Hello, wide 🌍!")
    person.answered()
    person.expect(f"{answer} strong").to_have_text("wide")
    person.expect(".stats").to_contain_text("6 tokens")
    person.expect("#context-text").to_contain_text("/ 4,096")
    assert "Hello, wide 🌍!" in person.told()
    assert person.page.title() == "hello · localinfer"


def test_escape_stops_and_what_came_stays(person: Person, server: Watched) -> None:
    server.gate.close_gate(5)
    person.send("forever")
    person.expect(".message.assistant").to_contain_text("tick tick")
    person.page.keyboard.press("Escape")
    person.expect(".message.assistant .finish").to_have_text("Stopped.")
    person.expect(".message.assistant .markdown").to_contain_text("tick tick")
    person.expect("#send").to_be_visible()
    server.gate.open_gate()
    person.ask("hello")
    person.expect(".message.assistant:last-of-type .markdown").to_have_text("Hello, wide 🌍!")


def test_edited_and_repeated_messages_are_branches(person: Person) -> None:
    person.ask("first")
    person.ask("second")
    person.page.locator("#input").press("ArrowUp")
    editor = person.page.locator(".editor textarea")
    assert editor.input_value() == "second"
    editor.fill("another")
    editor.press("Enter")
    person.expect(".user .bubble").to_have_text(["first", "another"])
    person.answered()
    person.expect(".user .branches span").to_have_text("2/2")
    person.page.get_by_label("Previous version").click()
    person.expect(".user .bubble").to_have_text(["first", "second"])
    person.page.locator(".message.assistant").first.get_by_label("Answer again").click()
    person.answered()
    person.expect(".user .bubble").to_have_text(["first"])
    person.expect(".assistant .branches span").to_have_text("2/2")
    person.page.get_by_label("Previous version").first.click()
    person.expect(".user .bubble").to_have_text(["first", "second"])


def test_everything_is_there_again_after_a_reload(person: Person) -> None:
    person.ask("first")
    person.ask("second")
    person.page.locator("#input").fill("half a thou")
    person.page.reload()
    person.expect(".user .bubble").to_have_text(["first", "second"])
    person.expect(".assistant .markdown").to_have_text(["Hello, wide 🌍!"] * 2)
    person.expect("#input").to_have_value("half a thou")
    person.page.keyboard.press("Control+k")
    person.expect(".message").to_have_count(0)
    person.expect("#input").to_be_focused()
    person.page.locator("#list .open").click()
    person.expect(".user .bubble").to_have_text(["first", "second"])


def test_an_answer_that_a_reload_cuts_off_is_kept(person: Person, server: Watched) -> None:
    server.gate.close_gate(5)
    person.send("forever")
    person.expect(".message.assistant").to_contain_text("tick tick")
    person.page.reload()
    person.expect(".message.assistant .markdown").to_contain_text("tick tick")
    person.expect("#send").to_be_visible()


def test_conversations_are_renamed_deleted_exported_and_imported(person: Person, tmp_path: Path) -> None:
    person.ask("<b>first</b>")
    person.page.locator("#list li").hover()
    person.page.locator("#list .icon").first.click()
    person.page.locator("#list input").fill("Renamed")
    person.page.locator("#list input").press("Enter")
    person.expect("#list .open").to_have_text("Renamed")
    with person.page.expect_download() as download:
        person.page.locator("#export").click()
    file = tmp_path / "conversations.json"
    download.value.save_as(file)
    exported = json.loads(file.read_text(encoding="utf-8"))
    assert [node["text"] for node in exported["conversations"][0]["nodes"]] == ["<b>first</b>", "Hello, **wide** 🌍!"]
    person.page.locator("#list li").hover()
    person.page.get_by_label("Delete Renamed").click()
    person.expect("#list .open").to_have_count(0)
    person.page.get_by_text("Undo").click()
    person.expect("#list .open").to_have_text("Renamed")
    person.page.locator("#file").set_input_files(file)
    person.expect("#list .open").to_have_count(2)
    file.write_text(
        '{"format": "localinfer-conversations", "conversations": [{"nodes": [{"id": "a", "role": "root"}]}]}'
    )
    person.page.locator("#file").set_input_files(file)
    person.expect("#toast").to_contain_text("Conversation 1 of the file cannot be read")
    person.page.reload()
    person.expect("#list .open").to_have_count(2)


def test_a_full_store_is_said_and_nothing_stops(person: Person) -> None:
    person.page.evaluate(
        "for (let n = 0; n < 9; n++) try { localStorage.setItem('other' + n, 'x'.repeat(6e5)) } catch {}"
    )
    person.page.evaluate("try { for (let n = 0; ; n++) localStorage.setItem('rest' + n, 'x'.repeat(100)) } catch {}")
    person.ask("hello")
    person.expect("#banner").to_contain_text("no room left in this browser")
    person.expect(".assistant .markdown").to_have_text("Hello, wide 🌍!")
    person.page.evaluate(
        "for (const key of Object.keys(localStorage)) if (/^(other|rest)/.test(key)) localStorage.removeItem(key)"
    )
    person.ask("again")
    person.expect("#banner").to_be_hidden()
    person.page.reload()
    person.expect(".user .bubble").to_have_text(["hello", "again"])


def test_settings_reach_the_server(person: Person) -> None:
    person.page.locator("#open-settings").click()
    person.page.get_by_label("System prompt").fill("Be brief.")
    person.page.get_by_label("Temperature").fill("0")
    person.page.get_by_label("Longest answer").fill("2")
    person.page.locator("summary", has_text="Thinking").click()
    person.page.get_by_label("Longest thought").fill("100")
    person.page.get_by_text("Advanced sampling").click()
    person.page.get_by_label("XTC probability").fill("0.5")
    person.page.keyboard.press("Escape")
    with person.page.expect_request("**/v1/chat/completions") as asked:
        person.ask("hello")
    body = asked.value.post_data_json
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    assert (body["temperature"], body["max_tokens"], body["stream_options"]) == (0, 2, {"include_usage": True})
    assert body["thinking_budget"] == 100
    assert body["xtc_probability"] == 0.5
    assert not {"top_p", "top_k", "mirostat", "tools", "stop"} & set(body), "what is not set is up to the model"
    person.expect(".finish").to_contain_text("cut off")
    person.page.locator("#open-settings").click()
    person.page.get_by_label("Temperature").fill("-3")
    person.expect("#fields .wrong").to_have_text("Temperature cannot be -3.")
    person.page.keyboard.press("Escape")
    person.ask("hello")
    person.expect(".failed").to_contain_text("Temperature cannot be -3.")


def test_what_goes_wrong_is_said_in_words_and_nothing_is_lost(person: Person) -> None:
    begun = 'data: {"choices": [{"index": 0, "delta": {"content": "Half an"}}]}\n\n'
    ways: list[tuple[Any, str, str]] = [
        (lambda route: route.abort(), "The server cannot be reached", ""),
        (lambda route: route.fulfill(body=begun, content_type="text/event-stream"), "connection was lost", "Half an"),
        (
            lambda route: route.fulfill(body=begun + 'data: {"error": {"message": "it broke"}}\n\n'),
            "It broke.",
            "Half an",
        ),
        (
            lambda route: route.fulfill(status=429, json={"error": {"message": "busy"}}, headers={"retry-after": "7"}),
            "Busy. It may have time in 7 s.",
            "",
        ),
        (lambda route: route.fulfill(status=502, body="<html>"), "The server answered 502 Bad Gateway.", ""),
    ]
    for number, (way, words, kept) in enumerate(ways):
        person.page.keyboard.press("Control+k")
        person.page.route("**/v1/chat/completions", way)
        person.ask(f"question {number}")
        person.expect(".failed p").to_contain_text(words)
        person.expect(".user .bubble").to_have_text(f"question {number}")
        if kept:
            person.expect(".assistant .markdown").to_have_text(kept)
        person.page.unroute("**/v1/chat/completions")
        person.page.get_by_text("Try again").click()
        person.expect(".assistant .markdown").to_have_text("Hello, wide 🌍!")
        person.answered()
        person.expect(".assistant .branches").to_have_count(1 if kept else 0)
        person.expect(".user .bubble").to_have_text(f"question {number}")
    person.complaints.clear()  # the browser's own words about these answers


def test_a_long_prompt_is_refused_in_words(person: Person) -> None:
    person.ask("x" * 5000)
    person.expect(".failed p").to_contain_text("4096")
    person.complaints.clear()


def test_the_key_is_asked_for_once(browser: Any, tmp_path: Path) -> None:
    with served(scripted(tmp_path, template=TEMPLATE), ServerSettings(api_keys=(KEY,)), guard=True) as found:
        context = browser.new_context()
        page = context.new_page()
        page.goto(found.url)
        from playwright.sync_api import expect

        for key, words in (("wrong", "does not take this key"), (KEY, "")):
            page.locator("#key-input").fill(key)
            page.locator("#key-input").press("Enter")
            expect(page.locator("#key-error")).to_contain_text(words)
        expect(page.locator("#key")).to_be_hidden()
        page.locator("#input").fill("hello")
        page.locator("#input").press("Enter")
        expect(page.locator(".assistant .markdown")).to_contain_text("Hello")
        page.reload()
        expect(page.locator("#model")).to_have_value("tiny")
        assert KEY not in page.evaluate("JSON.stringify(localStorage)"), (
            "it is kept for the tab alone, unless asked for"
        )
        context.close()


def test_thoughts_are_folded_and_calls_get_results(browser: Any, tmp_path: Path) -> None:
    with served(scripted(tmp_path, template=TEMPLATE, answer=CALLING), guard=True) as found:
        person = Person(browser, found.url)
        person.page.locator("#open-settings").click()
        person.page.locator("summary", has_text="Tools").click()
        person.page.get_by_label("Functions as JSON").fill("{")
        person.expect("#fields .wrong").to_contain_text("no JSON")
        person.page.get_by_label("Functions as JSON").fill(json.dumps([TOOLS[0]["function"], TOOLS[1]]))
        person.expect("#fields .wrong").to_have_text("")
        person.page.keyboard.press("Escape")
        person.ask("hello")
        person.expect(".reasoning summary").to_have_text("Thoughts")
        person.expect(".thought").to_be_hidden()
        person.page.locator(".reasoning summary").click()
        person.expect(".thought").to_have_text("Which city?")
        person.expect(".call summary").to_have_text(["weather", "clock"])
        person.expect(".call code").to_have_text(['{\n  "city": "Oslo"\n}', "{}"])
        person.page.get_by_label("Result of weather").fill("sunny")
        person.page.get_by_label("Result of clock").fill("forever")
        with person.page.expect_request("**/v1/chat/completions") as asked:
            person.page.get_by_text("Send results").click()
        person.expect(".message.assistant").to_have_count(2)
        person.page.keyboard.press("Escape")
        sent = asked.value.post_data_json["messages"]
        assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool"]
        assert [call["function"]["name"] for call in sent[1]["tool_calls"]] == ["weather", "clock"]
        assert [message["tool_call_id"] for message in sent[2:]] == [call["id"] for call in sent[1]["tool_calls"]]
        assert [message["content"] for message in sent[2:]] == ["sunny", "forever"]
        person.context.close()
        assert not person.complaints


def test_a_hostile_answer_does_nothing(browser: Any, tmp_path: Path) -> None:
    with served(scripted(tmp_path, answer=HOSTILE), guard=True) as found:
        person = Person(browser, found.url)
        asked: list[str] = []
        person.page.on("request", lambda request: asked.append(request.url))
        person.page.on("dialog", lambda dialog: person.complaints.append(dialog.message))
        person.ask("<img src=x onerror=alert(1)>")
        answer = person.page.locator(".message.assistant .markdown")
        text = answer.text_content()
        for shown in ("<script>", "<img src=x", "javascript:document", "</code></pre><iframe", "␛[31mred␇ \ufffdgnp"):
            assert shown in text
        assert answer.locator("script, img, iframe, b").count() == 0
        links = answer.locator("a").evaluate_all("links => links.map(link => [link.protocol, link.host, link.rel])")
        assert links == [
            ["https:", "evil.example", "noopener noreferrer"],
            ["https:", "good.example", "noopener noreferrer"],
        ]
        assert answer.evaluate(
            "top => [top, ...top.querySelectorAll('*')].every(e => e.getAttributeNames().every(n => !/^on/.test(n)))"
        )
        person.page.reload()
        person.expect(".message.assistant .markdown").to_contain_text("<script>")
        assert person.page.title() == "<img src=x onerror=alert(1)> · localinfer"
        assert {url.partition("/v1")[0].partition("/page")[0].rstrip("/") for url in asked} <= {found.url}
        person.context.close()
        assert not person.complaints


def test_deep_and_endless_markdown_costs_little(person: Person) -> None:
    took = person.page.evaluate(
        """async () => {
            const { Markdown } = await import("/page/markdown.js");
            const size = 20000;
            const texts = [">", "- ", "*a ", "**a _b ", "[", "![", "](", "`", "` `` ", "<", "~~a ", "| a ", "1. ", "# ",
                "\\\\", "(", "http://a", "*a* ", "[a](b ", "&#", "> - ", "  - a\\n", "|a|b|\\n|-|-|\\n", "\\n\\n", " ",
                "_",
            ].map((piece) => piece.repeat(size));
            texts.push("*_".repeat(size) + "_*".repeat(size));
            texts.push("[".repeat(size) + "](https://a.b)".repeat(size));
            texts.push("```js\\n" + "/*'`\\"".repeat(size));
            const slow = [];
            for (const text of texts) {
                const begun = performance.now();
                new Markdown(document.createElement("div")).show(text, true);
                slow.push([performance.now() - begun, text.slice(0, 12)]);
            }
            return slow.sort((a, b) => b[0] - a[0]);
        }"""
    )
    assert took[0][0] < 3000, took[:5]


def test_markdown_is_shown_as_people_expect(person: Person) -> None:
    show = """async (text) => {
        const { Markdown } = await import("/page/markdown.js");
        const target = document.createElement("div");
        new Markdown(target).show(text, true);
        const written = (node) => node.nodeType === Node.TEXT_NODE ? node.data :
            `${node.localName}${node.href ? `<${node.href}>` : ""}(${[...node.childNodes].map(written).join("")})`;
        return [...target.childNodes].map(written).join(" ");
    }"""
    cases = {
        "a *b* **c** ~~d~~ `e*f*`": "p(a em(b) strong(c) del(d) code(e*f*))",
        "***both*** snake_case_name 2*3*4": "p(em(strong(both)) snake_case_name 2em(3)4)",
        "**a *b* c** 2 * 3 * 4": "p(strong(a em(b) c) 2 * 3 * 4)",
        "\\*no\\* *no": "p(*no* *no)",
        "one\ntwo  \nthree": "p(onebr()twobr()three)",
        "# T\n## U #": "h3(T) h4(U)",
        "- a\n- b\n  - c\n\ntext": "ul(li(a)li(bul(li(c)))) p(text)",
        "3. a\n4. b": "ol(li(a)li(b))",
        "1. a\n\n   more\n2. b": "ol(li(amore)li(b))",
        "- a\n\n- b": "ul(li(p(a))li(p(b)))",
        "- [x] a": "ul(li(input()a))",
        "> a\n> > b": "blockquote(p(a)blockquote(p(b)))",
        "---\n***": "hr() hr()",
        "see https://a.example/x_(y).": "p(see a<https://a.example/x_(y)>(https://a.example/x_(y)).)",
        "(https://b.example)": "p((a<https://b.example/>(https://b.example)))",
        '[t](https://a.example "w")': "p(a<https://a.example/>(t))",
        "<mailto:a@b.example>": "p(a<mailto:a@b.example>(mailto:a@b.example))",
        "[x] and [y](b)": "p([x] and [y](b))",
        "``a`b`` `c": "p(code(a`b) `c)",
        "|a|b|\n|-|:-:|\n|1|`x|y`|": "div(table(thead(tr(th(a)th(b)))tbody(tr(td(1)td(code(x|y))))))",
        "a | b": "p(a | b)",
    }
    for text, expected in cases.items():
        assert person.page.evaluate(show, text) == expected, text


def test_code_can_be_copied(browser: Any, tmp_path: Path) -> None:
    answer = ["Try:\n", "```python\n", "def f():\n", "    return 'x'\n", "```\n", "Done."]
    with served(scripted(tmp_path, answer=answer), guard=True) as found:
        person = Person(browser, found.url, permissions=["clipboard-read", "clipboard-write"])
        person.ask("hello")
        person.expect(".code .keyword").to_have_text(["def", "return"])
        person.page.get_by_label("Copy code").click()
        person.expect("#live").to_contain_text("Copied")
        assert person.page.evaluate("navigator.clipboard.readText()") == "def f():\n    return 'x'"
        person.context.close()
        assert not person.complaints


def test_a_phone_has_room_for_everything(browser: Any, server: Watched) -> None:
    person = Person(browser, server.url, viewport={"width": 360, "height": 640}, is_mobile=True, has_touch=True)
    assert not person.scrolls_sideways()
    person.page.locator("#input").fill("a" * 300)
    person.page.locator("#input").press("Enter")  # a phone's keyboard has no other key for a new line
    person.expect("#input").to_have_value("a" * 300 + "\n")
    person.page.locator("#send").click()
    person.expect(".message.assistant .markdown").to_contain_text("Hello")
    person.answered()
    assert not person.scrolls_sideways()
    person.page.locator("#menu").click()
    person.expect("#list .open").to_be_visible()
    person.page.locator("#list .open").click()
    person.expect("#list .open").to_be_hidden()
    person.page.locator("#open-settings").click()
    assert not person.scrolls_sideways()
    person.context.close()
    assert not person.complaints


def test_light_and_dark(browser: Any, server: Watched) -> None:
    person = Person(browser, server.url, color_scheme="dark")

    def background() -> tuple[int, ...]:
        colour = person.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return tuple(map(int, re.findall(r"\d+", colour)[:3]))

    assert max(background()) < 64
    theme = person.page.locator("#theme")
    theme.click()
    person.expect("#theme").to_have_attribute("aria-label", "Theme: light")
    assert min(background()) > 192
    person.page.reload()
    assert min(background()) > 192, "the choice is kept"
    theme.click()
    theme.click()
    person.expect("#theme").to_have_attribute("aria-label", "Theme: as the system")
    assert max(background()) < 64
    person.context.close()


def test_everything_that_can_be_pressed_has_a_name(person: Person) -> None:
    person.ask("hello")
    person.page.locator("#open-settings").click()
    nameless = person.page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, textarea")].filter((part) =>
            !(part.getAttribute("aria-label") || part.textContent.trim() || part.labels?.length))
            .map((part) => part.outerHTML)"""
    )
    assert nameless == []


# Texts with less contrast than WCAG 2.2 AA asks for (1.4.3: 4.5, of large ones 3), and icons that can be pressed
# (1.4.11: 3). What is disabled or not shown is exempt. Colours are mixed as they lie on each other.
FAINT = """() => {
    const channels = (text) => {
        const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
        return [r, g, b, a];
    };
    const over = (top, below) => [0, 1, 2].map((at) => top[at] * top[3] + below[at] * (1 - top[3])).concat(1);
    const light = (colour) => {
        const [r, g, b] = colour.map((c) => (c <= 10.3 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
        const layers = [];
        for (let at = element; at; at = at.parentElement) layers.push(channels(getComputedStyle(at).backgroundColor));
        return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
    };
    const faint = [];
    for (const element of document.querySelectorAll("body *")) {
        const style = getComputedStyle(element);
        const text = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
        const icon = element.matches("button svg");
        const seen = element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
        if (!(text || icon) || !seen || element.closest(":disabled, .unseen, .skip, option")) continue;
        let opacity = 1;
        for (let at = element; at; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
        const back = behind(element);
        const [r, g, b, a] = channels(style.color);
        const [high, low] = [light(over([r, g, b, a * opacity], back)), light(back)].sort((x, y) => y - x);
        const size = parseFloat(style.fontSize);
        const least = icon || size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
        const ratio = (high + 0.05) / (low + 0.05);
        if (ratio < least) faint.push(`${ratio.toFixed(2)} ${element.outerHTML.slice(0, 90)}`);
    }
    return faint;
}"""
RICH = [
    "# Title\n\nText with `code`, [a link](https://a.example) and *more*.\n\n> A quote\n\n",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n- [x] done\n\n",
    "```python\n# a comment\ndef f(x: int) -> str:\n    return 'text' + str(42)\n```\n",
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_has_enough_contrast(browser: Any, tmp_path: Path, scheme: str) -> None:
    answer = ["<think>", "A thought", "</think>", *RICH]
    with served(scripted(tmp_path, template=TEMPLATE, answer=answer), guard=True) as found:
        person = Person(browser, found.url, color_scheme=scheme)
        assert person.page.evaluate(FAINT) == []
        person.ask("hello")
        person.page.locator(".reasoning summary").click()
        assert person.page.evaluate(FAINT) == []
        person.page.route("**/v1/chat/completions", lambda route: route.abort())
        person.ask("again")
        person.expect(".failed").to_be_visible()
        person.page.locator("#list li").hover()
        person.page.get_by_label("Delete hello").click()
        person.expect("#toast button").to_be_visible()
        assert person.page.evaluate(FAINT) == []
        person.page.locator("#open-settings").click()
        assert person.page.evaluate(FAINT) == []
        person.context.close()


def test_the_speed_is_told_while_an_answer_comes(person: Person, server: Watched) -> None:
    server.gate.close_gate(2)
    person.send("forever")
    person.expect(".message.assistant").to_contain_text("tick")
    for _ in range(3):
        server.gate.open_gate(1)
        person.page.wait_for_timeout(60)
    person.expect(".message.assistant[aria-busy=true] .stats").to_contain_text("tokens/s")
    person.expect("#context-text").to_contain_text("~")
    person.page.keyboard.press("Escape")
    person.expect(".message.assistant .finish").to_have_text("Stopped.")


def test_the_keyboard_reaches_everything_in_the_order_in_which_it_stands(person: Person) -> None:
    person.ask("hello")
    person.page.locator(".skip").focus()
    found: list[str] = []
    while True:
        assert person.page.evaluate("document.activeElement.checkVisibility({ opacityProperty: true })"), found
        name = person.page.evaluate(
            "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent.trim()"
        )
        found.append(name)
        if name == "Message" or len(found) == 40:
            break
        person.page.keyboard.press("Tab")
    assert found == [
        *("Skip to the message field", "New conversation", "Search conversations"),
        *("hello", "Rename hello", "Delete hello", "Export", "Import", "Model", "Theme: as the system", "Settings"),
        *("Copy message", "Edit", "Copy message", "Edit", "Answer again", "Message"),
    ]


def test_a_dialog_keeps_the_focus_and_gives_it_back(person: Person) -> None:
    opener = person.page.locator("#open-settings")
    opener.focus()
    person.page.keyboard.press("Enter")
    person.expect("#settings").to_be_visible()
    for _ in range(60):
        person.page.keyboard.press("Tab")
        assert person.page.evaluate(
            "document.activeElement === document.body || !!document.activeElement.closest('#settings')"
        )
    person.page.keyboard.press("Escape")
    person.expect("#settings").to_be_hidden()
    person.expect("#open-settings").to_be_focused()


def test_nothing_moves_for_those_who_do_not_want_it(browser: Any, server: Watched) -> None:
    person = Person(browser, server.url, reduced_motion="reduce")
    server.gate.close_gate(0)
    person.send("hello")
    person.expect(".dots").to_be_visible()
    moving = "document.getAnimations({ subtree: true }).length"
    assert person.page.evaluate(moving) == 0
    server.gate.open_gate()
    person.answered()
    person.context.close()


def test_fingers_find_what_they_press(browser: Any, server: Watched) -> None:
    """Everything that can be pressed on a phone of 375 pixels is at least 24 pixels wide and high (WCAG 2.5.8)."""
    person = Person(browser, server.url, viewport={"width": 375, "height": 667}, is_mobile=True, has_touch=True)
    person.page.locator("#input").fill("hello")
    person.page.locator("#send").click()
    person.expect(".message.assistant .markdown").to_contain_text("Hello")
    person.answered()
    small = """() => [...document.querySelectorAll("button, select, input, textarea, summary")]
        .filter((e) => e.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && !e.inert)
        .filter((e) => Math.min(e.getBoundingClientRect().width, e.getBoundingClientRect().height) < 24)
        .map((e) => e.outerHTML)"""
    assert person.page.evaluate(small) == []
    person.page.locator("#menu").click()
    person.expect("#list .open").to_be_visible()
    assert person.page.evaluate(small) == []
    person.page.locator("#list .open").click()
    person.page.locator("#open-settings").click()
    assert person.page.evaluate(small) == []
    assert not person.scrolls_sideways()
    person.context.close()


def test_a_server_that_answers_is_not_said_to_be_lost(person: Person) -> None:
    person.page.route("**/v1/**", lambda route: route.abort())
    person.ask("one")
    person.expect("#banner").to_contain_text("cannot be reached")
    person.page.unroute("**/v1/**")
    refusal = json.dumps({"error": {"message": "no"}})
    person.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, body=refusal))
    person.ask("two")
    person.expect("#banner").to_be_hidden()
    person.complaints.clear()
