// Runs in a page of the console and returns what a screen reader or a weak eye would miss.
() => {
  const found = [];
  const where = (one) => one.outerHTML.slice(0, 120);
  const isShown = (one) => one.checkVisibility ? one.checkVisibility() : one.offsetParent !== null;

  for (const one of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
    const isNamed = [...one.labels].some((label) => label.textContent.trim()) || one.getAttribute("aria-label");
    if (!isNamed) found.push(`no label: ${where(one)}`);
  }
  for (const one of document.querySelectorAll("a, button, summary")) {
    if (!one.textContent.trim() && !one.getAttribute("aria-label")) found.push(`no name: ${where(one)}`);
  }
  for (const one of document.querySelectorAll("img")) if (!one.alt) found.push(`no text for an image: ${where(one)}`);
  for (const one of document.querySelectorAll("svg[role=img]")) {
    if (!one.querySelector("title")?.textContent.trim()) found.push(`no title for a picture: ${where(one)}`);
  }
  for (const one of document.querySelectorAll("svg:not([role=img])")) {
    if (one.getAttribute("aria-hidden") !== "true") found.push(`a picture without a role: ${where(one)}`);
  }
  for (const one of document.querySelectorAll("table")) {
    if (!one.caption?.textContent.trim()) found.push(`no caption: ${where(one)}`);
    for (const head of one.querySelectorAll("th:not([scope])")) found.push(`no scope: ${where(head)}`);
  }
  for (const one of document.querySelectorAll("[aria-labelledby]")) {
    const names = one.getAttribute("aria-labelledby").split(/\s+/).map((id) => document.getElementById(id));
    // A section that is empty now has no heading.
    if (one.children.length && names.some((name) => !name)) found.push(`its heading is missing: ${where(one)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  for (const id of new Set(ids.filter((one, place) => ids.indexOf(one) !== place))) found.push(`an id twice: ${id}`);

  let before = 0;
  for (const one of document.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    const level = Number(one.tagName[1]);
    if (level > before + 1) found.push(`a heading of level ${level} after ${before}: ${where(one)}`);
    if (!one.textContent.trim()) found.push(`an empty heading: ${where(one)}`);
    before = level;
  }
  if (document.querySelectorAll("h1").length !== 1) found.push("not exactly one heading of level 1");
  if (!document.documentElement.lang) found.push("no language");

  const parsed = (color) => color.match(/[\d.]+/g).map(Number);
  const light = ([red, green, blue]) => {
    const parts = [red, green, blue].map((value) => value / 255)
      .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const ground = (one) => {
    for (let each = one; each; each = each.parentElement) {
      const color = parsed(getComputedStyle(each).backgroundColor);
      if (color.length < 4 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const seen = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const one = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !isShown(one) || one.closest("svg, option, script, .unseen, .skip")) continue;
    const style = getComputedStyle(one);
    const colors = [light(parsed(style.color)), light(ground(one))].sort();
    const contrast = (Math.max(...colors) + 0.05) / (Math.min(...colors) + 0.05);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const key = `${style.color} on ${ground(one)}`;
    if (contrast < (isLarge ? 3 : 4.5) && !seen.has(key)) {
      seen.add(key);
      found.push(`contrast of ${contrast.toFixed(2)}: ${key}: ${where(one)}`);
    }
  }
  return found;
}
