// The only ways in which this page makes elements. Text goes in as text nodes, never as markup.

/** An element; properties that begin with "on" are listeners, false and undefined ones are left out. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** An icon of the sprite in index.html; it tells screen readers nothing. */
export function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const made = document.createElementNS(space, "svg");
  const use = document.createElementNS(space, "use");
  made.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#i-${name}`);
  made.append(use);
  return made;
}

/** A button that shows an icon, and says `label` to those who point at it or hear it. */
export function iconButton(name, label, onclick, properties = {}) {
  return element("button", { type: "button", class: "icon", "aria-label": label, title: label, onclick, ...properties }, icon(name));
}

/** Text without characters that act: controls (ANSI escapes begin with one) and those that reorder text are shown. */
export function visible(text) {
  return text.replace(/\r\n?/g, "\n").replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, (character) => {
    const code = character.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "\u2421" : "\ufffd";
  });
}

/** Puts text on the clipboard; false if the browser does not let us. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages over plain HTTP from another machine have no clipboard but this.
    const area = element("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    const focused = document.activeElement;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return done;
  }
}

/** A button that copies what `text()` returns, and shows that it did. */
export function copyButton(text, label) {
  const button = iconButton("copy", label, async () => {
    const done = await copy(text());
    button.replaceChildren(icon(done ? "check" : "close"));
    announce(done ? "Copied" : "Copying is not allowed by the browser");
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  });
  return button;
}

/** Says something to screen readers once nothing else is being said. */
export function announce(text) {
  const live = document.getElementById("live");
  live.append(element("p", {}, text));
  while (live.childElementCount > 12) live.firstElementChild.remove();
}
