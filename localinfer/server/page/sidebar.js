// The list of conversations.

import { element, iconButton, visible } from "./dom.js";

/** Shows those that contain `words`; `actions`: open, rename and remove, each with the conversation. */
export function showList(target, conversations, current, words, actions) {
  const wanted = words.trim().toLowerCase();
  const found = conversations.filter((each) => !wanted || holds(each, wanted));
  const items = found.map((each) => item(each, each === current, actions));
  if (!items.length) items.push(element("li", { class: "none" }, wanted ? "Nothing found" : "No conversations yet"));
  target.replaceChildren(...items);
}

function holds(conversation, wanted) {
  return conversation.title.toLowerCase().includes(wanted) || conversation.nodes.some((node) => node.text.toLowerCase().includes(wanted));
}

function item(conversation, current, actions) {
  const title = visible(conversation.title) || "New conversation";
  const open = element(
    "button",
    { type: "button", class: "open", title, "aria-current": current && "true", onclick: () => actions.open(conversation) },
    title,
  );
  const rename = () => {
    const field = element("input", { type: "text", value: title, maxlength: "80", "aria-label": "Title" });
    let over = false;
    const done = (keep) => {
      if (over) return;
      over = true;
      actions.rename(conversation, keep && field.value.trim() ? field.value.trim() : conversation.title);
    };
    field.addEventListener("blur", () => done(true));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") done(true);
      if (event.key === "Escape") {
        event.stopPropagation();
        done(false);
      }
    });
    open.replaceWith(field);
    field.select();
  };
  return element(
    "li",
    {},
    open,
    iconButton("edit", `Rename ${title}`, rename),
    iconButton("trash", `Delete ${title}`, () => actions.remove(conversation)),
  );
}
