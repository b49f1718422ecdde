"""Hostile content does nothing: not in the page, not in a terminal, not in the server, its prompts, log and metrics."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import published
from browsing import Person, chromium
from hostile_texts import DEEP, LINKS, MARKUP, TEMPLATES, TERMINAL, TEXTS, UNICODE
from localinfer import LLM, LocalInferError
from localinfer.cli.markdown_stream import MarkdownStream
from localinfer.cli.output import harmless
from localinfer.formats.gguf import open_gguf
from localinfer.server.settings import ServerSettings
from localinfer.text.chat_template import ChatTemplate, encode_chat
from localinfer.text.tokenizer import load_tokenizer
from screen import Screen
from scripted_model import SPECIAL, write_scripted_model
from served_app import Served, served

CONTROL = 3  # the type of tokens that mark turns, in tokenizer.ggml.token_type
BROWSER = {"accept": "text/html"}
ANSWERED = 'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'

# Everything in the page that could do something, or that a model has no business to make. Its own parts are in
# index.html; `use` is in its icons.
ACTIVE = """() => {
    const found = [];
    const passive = new Set((
        "a article aside b blockquote body br button circle code del details dialog div em form h1 h2 h3 h4 h5 h6 " +
        "head header hr html input kbd label li link main meta meter nav noscript ol option p path pre rect script " +
        "section select small span strong summary svg symbol table tbody td textarea th thead title tr ul use"
    ).split(" "));
    const filled = "#thread, #list, #banner, #toast, #live, #model";
    const leads = (a) => /^(https?:|mailto:)/.test(a.getAttribute("href")) && a.target === "_blank" &&
        a.rel === "noopener noreferrer";
    const acts = /^(on|src|href|style|action|formaction|background|poster|data$|xlink|id$|name$)/;
    for (const element of document.querySelectorAll("*")) {
        const name = element.localName;
        if (!passive.has(name)) found.push(element.outerHTML);
        if (!element.parentElement?.closest(filled)) continue;
        if (["form", "link", "meta", "script", "title"].includes(name)) found.push(element.outerHTML);
        for (const { name: attribute, value } of element.attributes) {
            let allowed = !acts.test(attribute);
            if (name === "a" && attribute === "href") allowed = leads(element);
            if (name === "use" && attribute === "href") allowed = value.startsWith("#i-");
            if (!allowed) found.push(`${attribute} of ${element.outerHTML}`);
        }
    }
    if (document.head.childElementCount !== HEAD) found.push("the head has changed");
    return found;
}"""


# --- the server -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    llm = LLM(
        write_scripted_model(tmp_path_factory.mktemp("hostile") / "tiny.gguf", context=16384),
        context=16384,
        max_sequences=4,
        threads=1,
    )
    llm.name = "tiny"
    with served(llm, guard=True) as found:
        yield found


def bytes_of(text: str) -> int:
    """How many tokens a text has where each byte is one; a space is U+2581 to SentencePiece's vocabularies."""
    return len(text.replace(" ", "▁").encode())


def ask(server: Served, path: str, body: Any, **options: Any) -> httpx.Response:
    """Posts JSON (or bytes as they are); nothing may be an error of ours."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    response = httpx.post(f"{server.url}{path}", content=content, headers=headers, timeout=60, **options)
    assert response.status_code < 500, response.text
    return response


@pytest.mark.parametrize("text", TEXTS)
def test_messages_are_text_to_the_server(server: Served, text: str) -> None:
    """No template in a message is run, and every byte of it is one token of the prompt: none is a special one."""
    messages = [{"role": "user", "content": text}]
    prompt = ask(server, "/apply-template", {"messages": messages}).json()["prompt"]
    assert prompt == f"<|user|>{text}<|end|><|assistant|>"
    assert "1337" not in prompt
    answer = ask(server, "/v1/chat/completions", {"messages": messages, "max_tokens": 1})
    assert answer.status_code == 200
    # BOS, the marks of the user's and the model's turn, and the end between them
    assert answer.json()["usage"]["prompt_tokens"] == bytes_of(text) + 4


def test_no_message_forges_a_turn(server: Served) -> None:
    attack = "".join(SPECIAL[1:])
    size = bytes_of(attack)
    everywhere: Any = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": attack}], "max_tokens": 1},
        "/v1/messages": {"messages": [{"role": "user", "content": attack}], "max_tokens": 1},
        "/v1/responses": {"input": attack, "max_output_tokens": 1},
        "/api/chat": {
            "messages": [{"role": "user", "content": attack}],
            "stream": False,
            "options": {"num_predict": 1},
        },
    }
    for path, body in everywhere.items():
        answer = ask(server, path, body).json()
        usage = answer.get("usage", answer)
        counts = ("prompt_tokens", "input_tokens", "cache_read_input_tokens", "prompt_eval_count")
        counted = [usage[name] for name in counts if name in usage]
        assert size + 4 in (sum(counted), counted[0]), path  # Anthropic counts what was cached apart
    parts = [{"type": "text", "text": attack}, {"type": "text", "text": attack}]
    for role in ("system", "assistant", "user"):
        messages = [{"role": role, "content": parts}, {"role": "user", "content": "x"}]
        answer = ask(server, "/v1/chat/completions", {"messages": messages, "max_tokens": 1}).json()
        assert answer["usage"]["prompt_tokens"] == 2 * size + 1 + 7  # a new line between the parts, "x", six marks, BOS
    # Characters that could be taken for the marks by which texts are told apart do not help.
    everything = "".join(map(chr, range(0xFDD0, 0xFDF0))) + attack
    answer = ask(
        server, "/v1/chat/completions", {"messages": [{"role": "user", "content": everything}], "max_tokens": 1}
    )
    assert answer.json()["usage"]["prompt_tokens"] == bytes_of(everything) + 4


@pytest.mark.skipif(not published.PUBLISHED.exists(), reason="the published templates are not beside the checkout")
@pytest.mark.parametrize(
    ("vocabulary", "template"),
    [
        ("qwen2", "Qwen-Qwen2.5-7B-Instruct"),
        ("llama-bpe", "meta-llama-Llama-3.1-8B-Instruct"),
        ("phi-3", "microsoft-Phi-3.5-mini-instruct"),
        ("deepseek-llm", "deepseek-ai-DeepSeek-V3.1"),
    ],
)
def test_no_text_becomes_a_token_of_the_template(vocabulary: str, template: str) -> None:
    with open_gguf(published.VOCABULARIES / f"ggml-vocab-{vocabulary}.gguf") as file:
        tokenizer = load_tokenizer(file.metadata)
        source = (published.TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")
        chat = ChatTemplate(source, "", "")
        kinds: Any = file.metadata["tokenizer.ggml.token_type"]
        special = {token for token, kind in enumerate(kinds) if kind == CONTROL}
        names = [tokenizer.decode([token]) for token in sorted(special)][:400]

        def specials(text: str) -> list[int]:
            call = {
                "type": "function",
                "id": "123456789",
                "function": {"name": "f", "arguments": json.dumps({"a": text})},
            }
            messages: list[dict[str, Any]] = [
                {"role": "system", "content": f"s{text}"},
                {"role": "user", "content": f"u{text}"},
                {"role": "assistant", "content": f"a{text}", "tool_calls": [call]},
                {"role": "tool", "name": "f", "tool_call_id": "123456789", "content": f"t{text}"},
                {"role": "user", "content": text},
            ]
            if "Phi" in template:  # knows no tools
                messages = [messages[0], messages[1], {"role": "assistant", "content": f"a{text}"}, messages[4]]
            parts = chat.render_parts(messages)
            assert parts.contents_marked
            return [token for token in encode_chat(tokenizer, parts) if token in special]

        assert specials("x " + "".join(names) + " x") == specials("x x")


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ '{0.__class__}'.format(messages) }}{{ (messages | attr('__class__')) }}",
        "{{ self._TemplateReference__context }}{{ joiner.__init__ }}",
        "{% for a in range(10**9) %}{% for b in range(10**9) %}x{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'a' * 10**12 }}",
        "{{ 9**(9**9) }}",
        "{% include '/etc/passwd' %}{% import 'os' as os %}",
        "{% set l = [] %}{% for i in range(10**7) %}{{ l.append(l) }}{% endfor %}{{ l }}",
        "{{ messages | tojson(indent=10**9) }}",
        "{" * 20000 + "{{ " + "(" * 20000,
        "{{ raise_exception('\x1b[2J\n<script>') }}",
    ],
)
def test_templates_of_strangers_are_refused_in_words(template: str) -> None:
    begun = time.thread_time()
    with pytest.raises(LocalInferError) as raised:
        ChatTemplate(template).render_parts([{"role": "user", "content": "x"}])
    assert time.thread_time() - begun < 12
    assert len(raised.value.message) < 2000


def test_a_model_with_a_hostile_template_harms_only_itself(tmp_path: Path) -> None:
    template = "{% for a in range(10**9) %}{% for b in range(10**9) %}x{% endfor %}{% endfor %}"
    llm = LLM(write_scripted_model(tmp_path / "tiny.gguf", template=template), context=512, max_sequences=2, threads=1)
    llm.name = "tiny"
    with served(llm, guard=True) as found:
        refused = ask(found, "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
        assert refused.status_code == 400
        assert "chat template" in refused.json()["error"]["message"]
        assert httpx.get(f"{found.url}/health").status_code == 200
        assert ask(found, "/v1/completions", {"prompt": "x", "max_tokens": 1}).status_code == 200


NAMES = (
    "../../etc/passwd",
    "tiny\n2026-01-01T00:00:00+0000 endpoint=/forged status=200",
    'tiny"} 1\nevil_metric{x="',
    "\x1b[2J\x1b]0;x\x07\x9b1m\u202e",
    "<script>alert(1)</script>",
    "tiny\r\nset-cookie: a=b",
    "\x00",
    "a" * 300,
    "\\",
)


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_forge_no_line_no_header_and_no_metric(name: str, tmp_path: Path) -> None:
    """As the name of a model that is asked for, of a field, and of a stop text; and as what the model is served as."""
    log = tmp_path / "log"
    llm = LLM(write_scripted_model(tmp_path / "tiny.gguf"), context=512, max_sequences=2, threads=1)
    llm.name = name
    with served(llm, ServerSettings(log_file=str(log)), guard=True) as found:
        hello = [{"role": "user", "content": "x"}]
        assert ask(found, "/v1/chat/completions", {"messages": hello, "model": f"other {name}"}).status_code == 404
        known = ask(
            found, "/v1/chat/completions", {"messages": hello, f"unknown {name}": 1, "stop": name, "user": name}
        )
        assert known.status_code in (200, 400)
        assert "set-cookie" not in known.headers
        assert all(character.isprintable() for value in known.headers.values() for character in value)
        assert ask(found, "/v1/models", {}).status_code == 405
        assert httpx.get(f"{found.url}/v1/models").json()["data"][0]["id"] == name
        metrics = httpx.get(f"{found.url}/metrics").text
        families = {family.name for family in text_string_to_metric_families(metrics)}
        assert all(family.startswith(("vllm:", "localinfer:", "python_", "process_")) for family in families)
        models = {
            s.labels["model_name"]
            for f in text_string_to_metric_families(metrics)
            for s in f.samples
            if "model_name" in s.labels
        }
        assert models == {name}
    lines = log.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2
    for line in lines:
        assert re.match(r"\d{4}-\d\d-\d\dT\S+ endpoint=/v1/chat/completions status=\d+ ", line)
        assert line.isprintable()
        assert len(line) < 4000


def test_paths_and_headers_of_strangers(server: Served) -> None:
    before = httpx.get(f"{server.url}/metrics").text
    for number in range(50):
        assert httpx.get(f"{server.url}/none/{number}%0d%0aset-cookie:%20a=b").status_code == 404
    after = httpx.get(f"{server.url}/metrics").text
    assert len(after.splitlines()) <= len(before.splitlines()) + 2, "a path of its own for each"
    host, port = server.url.removeprefix("http://").split(":")
    for head in (
        "GET / HTTP/1.1\r\nHost: x\r\nX: \x1b[2J\r\n\r\n",
        "GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/9.9\r\nHost: x\r\n\r\n",
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ):
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(head.encode("latin-1"))
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(4096)
            assert not answer or re.match(rb"HTTP/1\.1 (200|4\d\d)", answer), head
    assert httpx.get(f"{server.url}/health").status_code == 200


HELLO = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
PICTURES = ("file:///etc/passwd", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"messages": ' + b'[{"role": "user", "content": ' * 2000,
        b'{"messages": [{"role": "user", "content": "\\ud800"}], "max_tokens": 1}',
        b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1' + b"0" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        b'{"max_tokens": 1, "messages": [], "messages": [{"role": "user", "content": "y"}]}',
        b"\xff\xfe{}",
        b"",
        {**HELLO, "messages": [{"role": "__class__", "content": "x"}]},
        {**HELLO, "messages": [{"role": "user", "content": "x", "__class__": "y", "tokens": [1, 2, 3]}]},
        {**HELLO, "chat_template_kwargs": {"messages": [], "bos_token": "<|system|>", "range": 1, "self": 2}},
        {**HELLO, "guided_regex": "(a+)+(b+)+$"},
        {**HELLO, "guided_regex": "((a{1,999}){1,999}){1,999}"},
        {**HELLO, "json_schema": {"$ref": "file:///etc/passwd"}},
        {**HELLO, "json_schema": {"$ref": "http://127.0.0.1:9/schema"}},
        {**HELLO, "json_schema": {"$ref": "#"}},
        {**HELLO, "grammar": "root ::= root"},
        {**HELLO, "grammar": 'root ::= "a" root | root root'},
        {**HELLO, "stop": ["a" * 1_000_000]},
        {**HELLO, "tools": [{"type": "function", "function": {"name": "{{7*7}}"}}]},
        *(
            {**HELLO, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}
            for url in PICTURES
        ),
    ],
    ids=lambda body: str(body)[:60],
)
def test_bodies_of_strangers(server: Served, body: Any) -> None:
    """They get an answer or a 400, soon; what they name is not fetched."""
    begun = time.monotonic()
    assert ask(server, "/v1/chat/completions", body).status_code in (200, 400)
    assert time.monotonic() - begun < 20
    assert httpx.get(f"{server.url}/health").status_code == 200


# --- a terminal -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_a_terminal_obeys_nothing_that_a_model_writes(text: str) -> None:
    """Whole or letter by letter, as markdown or not: only what we write moves the cursor or sets a colour."""
    step = 1 if len(text) < 200 else 25
    for pieces in ([text], [text[at : at + step] for at in range(0, len(text), step)]):
        stream, screen, written = MarkdownStream(), Screen(60), ""
        for piece in pieces:
            written += stream.feed(harmless(piece), 60, 24)
        written += stream.finish()
        screen.write(written)  # fails for sequences that are not ours
        plain = re.sub(r"\x1b\[[\d;]*[mKJACD]", "", written)
        acting = set(re.findall(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", plain))
        assert not acting


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as launched:
        yield launched


class Victim(Person):
    """Notices everything that a page could do behind a person's back."""

    def __init__(self, browser: Any, url: str, model: str = "tiny") -> None:
        super().__init__(browser, url, model=model)
        self.url = url
        self.head = self.page.evaluate("document.head.childElementCount")
        self.page.on("dialog", lambda dialog: self.complaints.append(f"a dialog: {dialog.message}"))
        self.page.on("download", lambda download: self.complaints.append(f"a download: {download.url}"))
        self.context.on("page", lambda page: self.complaints.append(f"a window: {page.url}"))
        self.context.on("request", self._look_at)

    def _look_at(self, request: Any) -> None:
        if not request.url.startswith((f"{self.url}/", "data:image/svg+xml,%3Csvg")):
            self.complaints.append(f"a request for {request.url}")

    def unharmed(self) -> None:
        """Nothing of the page acts, it is where it was, and the browser has nothing to complain about."""
        assert self.page.evaluate(ACTIVE.replace("HEAD", str(self.head))) == []
        assert self.page.url.rstrip("/") == self.url
        assert self.page.title().endswith("localinfer"), "a script of ours would have named it taken"
        assert self.complaints == []


def answers(body: str, **more: Any) -> Callable[[Any], None]:
    """A handler that answers a request of the page."""
    return lambda route: route.fulfill(body=body, **more)


def events(*deltas: dict[str, Any], **more: Any) -> str:
    """A streamed answer of these deltas."""
    made = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}], **more} for delta in deltas]
    return "".join(f"data: {json.dumps(event)}\n\n" for event in made) + ANSWERED


def test_nothing_that_a_model_writes_acts_in_the_page(browser: Any, server: Served) -> None:
    """As answers, thoughts, names and arguments of calls, and as what is typed, texts make nothing active."""
    victim = Victim(browser, server.url)
    for begin in range(0, len(TEXTS), 6):
        texts = TEXTS[begin : begin + 6]
        calls = [
            {"index": index, "id": text, "type": "function", "function": {"name": text, "arguments": text}}
            for index, text in enumerate(texts)
        ]
        contents = [{"content": f"{text}\n\n"} for text in texts]
        body = events({"reasoning_content": "\n".join(texts)}, *contents, {"tool_calls": calls})
        victim.page.route("**/v1/chat/completions", answers(body))
        victim.page.keyboard.press("Control+k")
        victim.ask("\n".join(texts).replace("\x00", ""))
        victim.page.unroute("**/v1/chat/completions")
        victim.page.locator(".message.assistant summary").first.click()
        victim.unharmed()
    victim.page.reload()
    victim.expect(".message.assistant").not_to_have_count(0)
    victim.unharmed()
    victim.context.close()


def test_no_beginning_of_a_text_acts_either(browser: Any, server: Served) -> None:
    """What a text is while it comes: every beginning, and every text behind others that were left open."""
    victim = Victim(browser, server.url)
    victim.page.evaluate(
        """async ([texts, openings]) => {
            const { Markdown } = await import("/page/markdown.js");
            const thread = document.getElementById("thread");
            for (const text of texts) {
                for (const opening of openings) {
                    const target = document.createElement("div");
                    const markdown = new Markdown(target);
                    thread.append(target);
                    const step = text.length < 200 ? 1 : 50;
                    for (let end = 0; end <= text.length + step; end += step) {
                        markdown.show(opening + text.slice(0, end));
                        // What loads or runs does so as soon as it is there.
                        if (target.querySelector("script, img, iframe, object, embed, style, link, base, form, video"))
                            throw new Error(text.slice(0, end));
                        for (const a of target.querySelectorAll("a"))
                            if (!/^(https?|mailto):$/.test(a.protocol)) throw new Error(text.slice(0, end));
                    }
                }
            }
        }""",
        [
            [*MARKUP, *LINKS, *TERMINAL, *UNICODE, *TEMPLATES, *DEEP],
            ["", "> - ", "| a |\n|---|\n| ", "[", "**", "```\n", "# "],
        ],
    )
    victim.unharmed()
    victim.context.close()


def test_links_that_are_followed_lead_where_they_say_and_tell_nothing(browser: Any, server: Served) -> None:
    victim = Victim(browser, server.url)
    body = events({"content": "\n\n".join(LINKS)})
    victim.page.route("**/v1/chat/completions", answers(body))
    victim.ask("x")
    links = victim.page.locator("#thread a").evaluate_all("all => all.map(a => [a.href, a.title, a.rel, a.target])")
    assert links
    for address, title, rel, target in links:
        assert (title, rel, target) == (address, "noopener noreferrer", "_blank")
        assert re.match(r"https?://|mailto:", address)
        assert address.isascii(), "letters that look like others are written out"
    victim.context.close()


def test_names_of_models_errors_and_files_do_nothing(browser: Any, server: Served, tmp_path: Path) -> None:
    for text in (MARKUP[0] + MARKUP[2], LINKS[0] + TERMINAL[1] + UNICODE[0]):
        context_of = json.dumps({"data": [{"id": text, "context_length": 4096, "state": "unloaded"}, {"id": "tiny"}]})
        victim = Victim(browser, server.url)
        victim.page.route("**/v1/models", answers(context_of))
        victim.page.reload()
        victim.expect("#model option").to_have_count(2)
        victim.expect(".welcome h2").to_be_visible()
        refusal = json.dumps({"error": {"message": text}})
        victim.page.route(
            "**/v1/chat/completions",
            answers(refusal, status=400, headers={"retry-after": "9"}),
        )
        victim.ask(text)
        victim.expect(".failed").to_be_visible()
        victim.complaints = [each for each in victim.complaints if "400" not in each]  # the browser's own words
        victim.unharmed()
        node = {"id": "a", "parent": None, "role": "tool", "text": text, "name": text, "model": text, "error": text}
        chat = {"id": "x", "title": text, "nodes": [node], "settings": {"system": text, "tools": text, "model": text}}
        file = tmp_path / "conversations.json"
        file.write_text(json.dumps({"format": "localinfer-conversations", "version": 1, "conversations": [chat]}))
        victim.page.locator("#file").set_input_files(file)
        victim.expect("#list .open").to_have_count(2)
        victim.page.locator("#list .open").last.click()
        victim.page.locator("#open-settings").click()
        victim.unharmed()
        victim.context.close()
