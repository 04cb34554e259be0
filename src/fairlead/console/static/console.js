// The console works without this script. It adds live updates, relative times, shortcuts, and the choice of colors.
"use strict";

const live = document.getElementById("live");
const state = document.getElementById("live-state");

function cookie(name) {
  const found = document.cookie.split("; ").find((part) => part.startsWith(name + "="));
  return found ? found.slice(name.length + 1) : "";
}

// Forms within live parts have no token of their own.
document.addEventListener("submit", (event) => {
  const field = event.target.querySelector('input[name="_csrf"]');
  if (field) field.value = cookie("_csrf");
});
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-submit]")) event.target.form.submit();
});

// Times: how long ago, with the local time as a tooltip.
function ago(seconds) {
  const past = Math.abs(seconds);
  const [amount, unit] = past < 60 ? [past, "s"] : past < 3600 ? [past / 60, "m"] : past < 86400 ? [past / 3600, "h"] : [past / 86400, "d"];
  const text = Math.floor(amount) + " " + unit;
  return seconds < 0 ? "in " + text : text + " ago";
}
function showTimes() {
  const now = Date.now();
  for (const one of document.querySelectorAll("time[datetime]")) {
    const at = new Date(one.dateTime);
    one.title = at.toLocaleString() + " (" + one.dateTime + ")";
    one.textContent = ago((now - at) / 1000);
  }
}
showTimes();
setInterval(() => { if (!document.hidden) showTimes(); }, 1000);

// On a narrow screen, the style sheet shows each row of a wide table as a card: each cell then needs its column's name.
function nameCells(within) {
  for (const table of within.querySelectorAll("table")) {
    const names = [...table.querySelectorAll("thead th")].map((one) => one.textContent.trim());
    if (names.length < 4 || table.dataset.plain !== undefined) continue;
    table.classList.add("cards");
    for (const row of table.querySelectorAll("tbody tr")) {
      let at = 0;
      for (const cell of row.children) {
        cell.dataset.label = names[at] || "";
        at += cell.colSpan;
      }
    }
  }
}
nameCells(document);
// The current view is in sight where the navigation scrolls.
const views = document.getElementById("views");
const here = views && views.querySelector("[aria-current]");
if (here) views.scrollLeft = here.offsetLeft - views.offsetLeft - 16;

// Live parts: each section is replaced only if the server's text for it differs from the last one.
const shown = new Map();
function isBusy(element) {
  const active = document.activeElement;
  return active && element.contains(active) && active.matches("input, textarea, select");
}
function replace(html) {
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  const ids = [...fresh.content.children].map((one) => one.id);
  const before = [...live.children].map((one) => one.id);
  nameCells(fresh.content);
  if (ids.some((id) => !id) || ids.join() !== before.join()) {
    if (!isBusy(live)) live.replaceChildren(fresh.content);
    return;
  }
  for (const section of [...fresh.content.children]) {
    const text = section.outerHTML;
    const old = document.getElementById(section.id);
    if (shown.get(section.id) === text || isBusy(old)) continue;
    shown.set(section.id, text);
    const open = [...old.querySelectorAll("details[id][open]")].map((one) => one.id);
    const active = old.contains(document.activeElement) ? document.activeElement : null;
    const focus = active && (active.id ? "#" + CSS.escape(active.id) : active.getAttribute("href") && 'a[href="' + CSS.escape(active.getAttribute("href")) + '"]');
    const scroll = [...old.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    old.replaceWith(section);
    announce(section);
    open.forEach((id) => { const one = document.getElementById(id); if (one) one.open = true; });
    section.querySelectorAll(".scroll").forEach((one, number) => { one.scrollLeft = scroll[number] || 0; });
    if (focus) { const again = section.querySelector(focus); if (again) again.focus({ preventScroll: true }); }
  }
}
// Screen readers hear the sentences that matter, when they change.
function announce(section) {
  const said = [...section.querySelectorAll("[data-announce]")].map((one) => one.textContent.trim()).join(" ");
  const place = document.getElementById("announcement");
  if (said && place.textContent !== said) place.textContent = said;
}
let stream = null;
let failures = 0;
function say(text) { if (state && state.textContent !== text) { state.textContent = text; state.classList.toggle("on", text === "live"); } }
function open() {
  if (stream || !document.body.dataset.live) return;
  stream = new EventSource(document.body.dataset.live);
  stream.addEventListener("open", () => { failures = 0; say("live"); });
  stream.addEventListener("live", (event) => { say("live"); replace(event.data); showTimes(); document.dispatchEvent(new Event("live")); });
  stream.addEventListener("signed-out", (event) => { say(event.data); close(); });
  stream.addEventListener("problem", (event) => say(event.data));
  stream.addEventListener("error", () => {
    failures += 1;
    say("not live");
    if (failures > 5 || stream.readyState === EventSource.CLOSED) close();
  });
}
function close() { if (stream) { stream.close(); stream = null; } }
if (live && document.body.dataset.live) {
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { close(); say("paused"); } else open();
  });
  if (!document.hidden) open();
}
addEventListener("pagehide", close);

// Light or dark: the system's choice, unless the viewer makes one.
const theme = document.getElementById("theme");
function useTheme(name) {
  if (name) document.documentElement.dataset.theme = name; else delete document.documentElement.dataset.theme;
  const said = name === "dark" ? "dark" : name === "light" ? "light" : "as the system has it";
  if (theme) { theme.textContent = name === "dark" ? "\u25cf" : name === "light" ? "\u25cb" : "\u25d0"; theme.title = "Colors: " + said; theme.setAttribute("aria-label", theme.title); }
}
function storedTheme() { try { return localStorage.getItem("theme") || ""; } catch { return ""; } }
useTheme(storedTheme());
if (theme) {
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const next = { "": "dark", dark: "light", light: "" }[storedTheme()] || "";
    try { localStorage.setItem("theme", next); } catch { /* The choice lasts for this page. */ }
    useTheme(next);
  });
}

// Shortcuts.
const keys = document.getElementById("keys");
function help() {
  let dialog = document.getElementById("help");
  if (!dialog) {
    dialog = document.createElement("dialog");
    dialog.id = "help";
    dialog.setAttribute("aria-label", "Keyboard shortcuts");
    const list = document.createElement("dl");
    const add = (key, text) => {
      const term = document.createElement("dt");
      term.append(Object.assign(document.createElement("kbd"), { textContent: key }));
      list.append(term, Object.assign(document.createElement("dd"), { textContent: text }));
    };
    add("/", "search field");
    add("j k", "next and previous row");
    add("Enter", "open the row");
    add("?", "this list");
    for (const link of document.querySelectorAll("a[data-key]")) add("g " + link.dataset.key, link.textContent);
    const form = Object.assign(document.createElement("form"), { method: "dialog" });
    form.append(Object.assign(document.createElement("button"), { textContent: "Close" }));
    dialog.append(list, form);
    document.body.append(dialog);
  }
  dialog.showModal();
}
if (keys) { keys.hidden = false; keys.addEventListener("click", help); }
let leader = 0;
function move(step) {
  const links = [...document.querySelectorAll("main tbody tr")].map((row) => row.querySelector("a, summary, button")).filter(Boolean);
  if (!links.length) return;
  const at = links.findIndex((link) => link.closest("tr").contains(document.activeElement));
  const next = links[Math.min(links.length - 1, Math.max(0, at + step))];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
  if (leader && Date.now() - leader < 1500) {
    leader = 0;
    const link = document.querySelector('a[data-key="' + CSS.escape(event.key) + '"]');
    if (link) { event.preventDefault(); link.click(); }
    return;
  }
  if (event.key === "g") leader = Date.now();
  else if (event.key === "?") help();
  else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "/") {
    const search = document.querySelector("[data-search]");
    if (search) { event.preventDefault(); search.focus(); search.select(); }
  }
});

// Saved filters of the list of workflows, in this browser only.
const saved = document.getElementById("saved");
function readFilters() {
  try { return JSON.parse(localStorage.getItem("filters") || "[]").filter((one) => typeof one.name === "string" && typeof one.query === "string"); } catch { return []; }
}
function showFilters() {
  saved.replaceChildren();
  for (const one of readFilters()) {
    const link = Object.assign(document.createElement("a"), { textContent: one.name, title: one.query });
    const address = new URL(saved.dataset.address, location.href);
    address.searchParams.set("query", one.query);
    link.href = address.href;
    const remove = Object.assign(document.createElement("button"), { type: "button", className: "plain", textContent: "\u00d7" });
    remove.setAttribute("aria-label", "Forget the filter " + one.name);
    remove.addEventListener("click", () => { keepFilters(readFilters().filter((other) => other.name !== one.name)); });
    saved.append(link, " ", remove, " ");
  }
  if (saved.dataset.query) {
    const keep = Object.assign(document.createElement("button"), { type: "button", className: "plain", textContent: "Save this query" });
    keep.addEventListener("click", () => {
      const name = prompt("Name of the filter", saved.dataset.query);
      if (name) keepFilters([...readFilters().filter((one) => one.name !== name), { name, query: saved.dataset.query }].slice(-50));
    });
    saved.append(keep);
  }
  saved.hidden = false;
}
function keepFilters(filters) {
  try { localStorage.setItem("filters", JSON.stringify(filters)); } catch { /* The browser keeps nothing. */ }
  showFilters();
}
if (saved) showFilters();

// Encoded payloads: the codec server decodes them for this browser, as for Temporal's page.
const decoded = new Map();
async function decode() {
  const endpoint = document.body.dataset.codec;
  if (!endpoint) return;
  const waiting = [...document.querySelectorAll("[data-payload]")];
  const unknown = [...new Set(waiting.map((one) => one.dataset.payload).filter((text) => !decoded.has(text)))];
  if (unknown.length) {
    unknown.forEach((text) => decoded.set(text, null));
    try {
      const answer = await fetch(endpoint.replace(/\/$/, "") + "/decode", {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-Namespace": document.body.dataset.namespace },
        body: JSON.stringify({ payloads: unknown.map((text) => JSON.parse(text)) }),
      });
      if (!answer.ok) throw new Error("status " + answer.status);
      const { payloads } = await answer.json();
      unknown.forEach((text, number) => decoded.set(text, new TextDecoder().decode(Uint8Array.from(atob(payloads[number].data), (each) => each.charCodeAt(0)))));
    } catch (error) {
      unknown.forEach((text) => decoded.set(text, "The codec server could not decode it: " + error.message));
    }
  }
  for (const one of document.querySelectorAll("[data-payload]")) {
    const text = decoded.get(one.dataset.payload);
    if (text) one.textContent = text;
  }
}
decode();
document.addEventListener("live", decode);
